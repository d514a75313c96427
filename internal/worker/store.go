package worker

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// errFull says that a source can store no more without credit.
var errFull = errors.New("worker: the store of a stream is full")

// stored is how many bytes were read and wait for credit.
func (s *source) stored() int64 { return s.spill.len() + int64(len(s.tail)) }

// fill reads the pipe into the store until there is credit (nil), the stream
// ends (io.EOF), or flow or the end does. When the store is full it waits.
func (s *source) fill(flow context.Context) error {
	await, cancel := context.WithCancel(flow)
	credit := make(chan struct{})
	var failed error
	var wait sync.WaitGroup
	wait.Go(func() {
		_, failed = s.o.end.Room(await, s.st)
		close(credit)
		s.o.interrupt(s.file)
	})
	spilling, _ := s.o.audience.isAway()
	spilling = spilling && s.o.audience.spills
	blocked := !spilling // descendants that hold the pipes have their time only while bytes may pass
	if blocked {
		s.o.drain.Block()
	}
	err := s.take(credit, spilling)
	if errors.Is(err, errFull) {
		if !blocked {
			s.o.drain.Block()
			blocked = true
		}
		<-credit // or the end of flow
		err = nil
	}
	cancel()
	wait.Wait()
	s.o.again(s.file)
	if blocked {
		s.o.drain.Unblock()
	}
	switch {
	case err != nil:
		return err
	case flow.Err() != nil:
		return context.Cause(flow)
	case failed == nil && s.stored() == 0:
		// A quiet stream must not hold what it was promised from others.
		return s.o.end.WriteBuf(s.st, make([]byte, wire.HeaderSize))
	}
	return failed
}

// take reads the pipe into the store until credit is closed (nil), the stream
// ends (io.EOF), or the store is full (errFull).
func (s *source) take(credit <-chan struct{}, spilling bool) error {
	for {
		select {
		case <-credit:
			return nil
		default:
		}
		room := s.space(spilling)
		if room <= 0 {
			return errFull
		}
		var whole *[]byte
		b, n, err := sandbox.ReadReady(s.file, func() []byte {
			whole = s.o.buffers.Get().(*[]byte)
			return (*whole)[:min(room, wire.MaxPayload)]
		})
		if err != nil {
			s.o.giveBack(whole)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				select {
				case <-credit:
					return nil
				default:
				}
			}
			return io.EOF
		}
		keep := s.o.limit.allow(n)
		s.keep(b[:keep], spilling)
		s.o.giveBack(whole)
		if keep < n {
			s.o.limit.over()
			return errOver
		}
	}
}

// space is how many bytes may be stored.
func (s *source) space(spilling bool) int64 {
	if spilling && len(s.tail) == 0 {
		if room := s.spill.room(); room > 0 {
			return room
		}
	}
	return int64(keptTail - len(s.tail))
}

// keep stores b behind what is stored.
func (s *source) keep(b []byte, spilling bool) {
	s.total.Add(uint64(len(b)))
	if spilling && len(s.tail) == 0 {
		b = b[s.spill.append(b):]
	}
	s.tail = append(s.tail, b...)
}

// send sends at most room stored bytes; Room has promised as many.
func (s *source) send(room int) error {
	n := min(room, wire.MaxPayload)
	if left := s.spill.len(); left > 0 {
		buf := make([]byte, wire.HeaderSize+int(min(int64(n), left)))
		if err := s.spill.next(buf[wire.HeaderSize:]); err != nil {
			s.lost(left, err)
			return err
		}
		return s.o.end.WriteBuf(s.st, buf)
	}
	n = min(n, len(s.tail))
	buf := append(make([]byte, wire.HeaderSize, wire.HeaderSize+n), s.tail[:n]...)
	if s.tail = s.tail[n:]; len(s.tail) == 0 {
		s.tail = nil
	}
	return s.o.end.WriteBuf(s.st, buf)
}

// lost ends the channel: n spilled bytes cannot be read again.
func (s *source) lost(n int64, err error) {
	s.o.end.Fail(wire.Errorf(wire.CodeInternal, "%v", err).
		With("outcome", string(wire.DataLost)).With("bytes", strconv.FormatInt(n, 10)))
}

// flush sends what is stored as there is credit, until ctx ends or nobody wants
// more.
func (s *source) flush(ctx context.Context) {
	for s.stored() > 0 {
		room, err := s.o.end.Room(ctx, s.st)
		if err != nil || s.send(room) != nil {
			return
		}
	}
}
