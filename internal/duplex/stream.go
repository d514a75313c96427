package duplex

import (
	"context"
	"io"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// wait blocks on st's condition until ready reports true (called with mu held)
// or ctx ends.
func (e *End) wait(ctx context.Context, st wire.Stream, ready func() bool) error {
	if ready() {
		return nil
	}
	c := e.cond[st]
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		c.Broadcast()
	})
	defer stop()
	for !ready() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.Wait()
	}
	return nil
}

// Read reads bytes of an incoming stream into p, waiting for at least one. At
// the end of the stream it returns io.EOF; when the channel failed before, the
// failure, after what had come was read.
func (e *End) Read(ctx context.Context, st wire.Stream, p []byte) (int, error) {
	data, err := e.Next(ctx, st)
	if err != nil {
		return 0, err
	}
	n := copy(p, data)
	e.Take(st, n)
	return n, nil
}

// Next waits for bytes of an incoming stream and returns them without taking
// them; the slice is valid until Take. Errors are those of Read.
func (e *End) Next(ctx context.Context, st wire.Stream) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.recv.streams[st]
	err := e.wait(ctx, st, func() bool { return len(s.queue) > 0 || e.over(s) != nil })
	switch {
	case err != nil:
		return nil, err
	case len(s.queue) > 0:
		return s.queue[0].data, nil
	}
	return nil, e.over(s)
}

// over says why nothing more comes on an incoming stream, or nil.
func (e *End) over(s *inStream) error {
	switch {
	case s.eof, s.drop:
		return io.EOF
	case e.failure != nil:
		return e.failure
	case e.exited != nil:
		return wire.Errorf(wire.CodeChannelEnded, "the channel ended before the whole stream was sent")
	}
	return nil
}

// Peek is Next without waiting: nil, nil when there is nothing yet.
func (e *End) Peek(st wire.Stream) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.recv.streams[st]
	if len(s.queue) > 0 {
		return s.queue[0].data, nil
	}
	return nil, e.over(s)
}

// Chunk is bytes of one stream with their place in the channel's one sequence.
type Chunk struct {
	Stream wire.Stream
	Seq    uint64
	Data   []byte
}

// NextChunk waits for the earliest bytes of any incoming stream, in the order
// in which the other end sent them, and takes them. It returns io.EOF after the
// end of every stream. Not to be mixed with Read.
func (e *End) NextChunk(ctx context.Context) (Chunk, error) {
	e.mu.Lock()
	now := time.Now()
	defer func() { e.unlock(now) }()
	head := wire.StreamNone
	var over error
	ready := func() bool {
		head, over = wire.StreamNone, io.EOF
		for st := range e.recv.streams {
			s := &e.recv.streams[st]
			if !s.open {
				continue
			}
			if len(s.queue) > 0 && (head == 0 || s.queue[0].seq < e.recv.streams[head].queue[0].seq) {
				head = wire.Stream(st)
			}
			if err := e.over(s); err != io.EOF && over != nil {
				over = err // nil: more may come
			}
		}
		return head != 0 || over != nil
	}
	if err := e.wait(ctx, wire.StreamNone, ready); err != nil {
		return Chunk{}, err
	}
	if head == 0 {
		return Chunk{}, over
	}
	c := e.recv.streams[head].queue[0]
	now = time.Now()
	e.recv.take(now, head, len(c.data))
	return Chunk{Stream: head, Seq: c.seq, Data: c.data}, nil
}

// Take says that the consumer has taken n of the bytes that Next or Peek
// returned: the sender gets credit for them.
func (e *End) Take(st wire.Stream, n int) {
	e.mu.Lock()
	now := time.Now()
	if len(e.recv.streams[st].queue) > 0 { // else discarded meanwhile
		e.recv.take(now, st, n)
	}
	e.unlock(now)
}

// Discard takes and drops what an incoming stream holds and will get: its
// consumer is gone. On the worker's stdin the client is told (STDIN_CLOSED),
// with the count of bytes that the process took before.
func (e *End) Discard(st wire.Stream) {
	e.mu.Lock()
	now := time.Now()
	if e.cfg.Side == Worker && !e.stdinEnd {
		e.stdinEnd, e.closedAt = true, e.recv.streams[st].taken
		e.sendStdinClosed()
	}
	e.recv.discard(now, st)
	e.cond[st].Broadcast()
	e.unlock(now)
}

func (e *End) sendStdinClosed() {
	if e.started {
		e.counter++
		e.outbox = append(e.outbox, outMsg{payload: wire.AppendStdinClosed(nil, e.cfg.Channel, e.reqs.attach, e.counter, e.closedAt, e.keyOut)})
	}
}

// Write takes all of p to send on an outgoing stream, waiting for credit. It
// copies p. It returns how many bytes were taken; with fewer than len(p), why:
// STDIN_CLOSED with the detail "taken", the channel's failure, or ctx's cause.
func (e *End) Write(ctx context.Context, st wire.Stream, p []byte) (int, error) {
	e.mu.Lock()
	total := 0
	for {
		now := time.Now()
		if err := e.writable(st); err != nil {
			e.unlock(now)
			return total, err
		}
		n := e.loan.take(min(e.send.room(st), len(p)-total), e)
		total += e.send.offer(now, st, p[total:total+n])
		e.unlock(now)
		if total == len(p) {
			return total, nil
		}
		e.mu.Lock()
		if err := e.waitWrite(ctx, st); err != nil {
			e.unlock(time.Now())
			return total, err
		}
	}
}

// writable returns why st can take no more bytes, or nil.
func (e *End) writable(st wire.Stream) error {
	switch {
	case e.stdinEnd && e.cfg.Side == Client:
		return e.stdinClosed()
	case e.failure != nil:
		return e.failure
	case e.exited != nil, e.finished:
		return wire.Errorf(wire.CodeChannelEnded, "the command has ended")
	case e.send.streams[st].ending:
		return wire.Errorf(wire.CodeStdinClosed, "the stream was closed for writing on this side")
	}
	return nil
}

// waitWrite waits until a writer of st has something to do. Meanwhile the
// receiver is asked for credit that may have been lost.
func (e *End) waitWrite(ctx context.Context, st wire.Stream) error {
	ready := func() bool { return e.mayWrite(st) }
	if ready() {
		return nil
	}
	now := time.Now()
	e.send.wanting++
	e.send.armProbe(now)
	e.arm(now)
	err := e.wait(ctx, st, ready)
	e.send.wanting--
	return err
}

// mayWrite reports whether a writer of st has something to do.
func (e *End) mayWrite(st wire.Stream) bool {
	return e.writable(st) != nil || e.send.room(st) > 0 && e.loan.ready(e)
}

// Room waits until at least one byte of an outgoing stream can be taken and
// returns how many can, at most MaxPayload. They are promised to the caller
// until WriteBuf brings as many or fewer.
func (e *End) Room(ctx context.Context, st wire.Stream) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if err := e.waitWrite(ctx, st); err != nil {
			return 0, err
		}
		if err := e.writable(st); err != nil {
			return 0, err
		}
		if e.promised[st] == 0 {
			e.promised[st] = e.loan.take(min(e.send.room(st), wire.MaxPayload), e)
		}
		if n := min(e.promised[st], e.send.room(st)); n > 0 {
			return n, nil
		}
	}
}

// WriteBuf sends bytes that the caller read after Room: buf is
// wire.HeaderSize bytes of room and then the bytes, and belongs to the end now.
func (e *End) WriteBuf(st wire.Stream, buf []byte) error {
	e.mu.Lock()
	now := time.Now()
	err := e.writable(st)
	n := len(buf) - wire.HeaderSize
	e.send.released += int64(e.promised[st] - n)
	e.promised[st] = 0
	if err != nil {
		e.send.released += int64(n)
	} else {
		e.send.offerBuf(now, st, buf)
	}
	e.unlock(now)
	return err
}

// CloseStream sends EOF with the total after the bytes taken so far. Idempotent.
func (e *End) CloseStream(st wire.Stream) {
	e.mu.Lock()
	now := time.Now()
	e.send.closeStream(now, st)
	e.cond[st].Broadcast()
	e.unlock(now)
}
