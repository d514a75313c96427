package worker

import (
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// stdin moves what the client sends into the command's standard input. The
// bytes are written where they arrive, in the end's callback, as long as the
// pipe takes them; when it is full, one goroutine waits and writes the rest.
// Either way there is one writer at a time, so the order is kept.
type stdin struct {
	end    *duplex.End
	only   bool           // body is all there is
	waiter sync.WaitGroup // Add under mu and only while not closed

	body  []byte        // written first; owned by the writer
	file  *os.File      // set before the first writer begins
	taken atomic.Uint64 // bytes of the client that the pipe took, body apart

	mu     sync.Mutex
	begun  bool // file is set
	busy   bool // there is a writer; stays set after the last byte
	again  bool // something came while there was one
	closed bool
	whole  bool // the command has got everything and its end
}

// attach begins to write to f, nil if the command has no stdin.
func (s *stdin) attach(f *os.File) {
	if f == nil {
		return
	}
	s.mu.Lock()
	s.file, s.begun = f, true
	s.mu.Unlock()
	s.readable()
}

// readable says that bytes or the end of stdin have come. It does not wait.
func (s *stdin) readable() {
	s.mu.Lock()
	mine := s.begun && !s.closed && !s.busy
	s.busy = s.busy || mine
	s.again = !mine
	s.mu.Unlock()
	if mine {
		s.write(false)
	}
}

// write is the writer. Without wait it hands over to a goroutine when the pipe
// is full.
func (s *stdin) write(wait bool) {
	for {
		data, err := s.next()
		switch {
		case err == io.EOF:
			s.finish()
			return
		case err != nil:
			return // the channel has failed and is about to end
		case len(data) == 0:
			if s.rest() {
				return
			}
			continue
		}
		n, err := sandbox.TryWrite(s.file, data)
		if n > 0 {
			s.take(n)
			continue
		}
		if err == nil && !wait {
			s.mu.Lock()
			if !s.closed {
				s.waiter.Go(func() { s.write(true) })
			}
			s.mu.Unlock()
			return
		}
		if err == nil {
			err = sandbox.WaitWritable(s.file)
		}
		if err != nil {
			// Nobody can read it any more. The client learns how much was taken.
			s.end.Discard(wire.Stdin)
			return
		}
	}
}

func (s *stdin) next() ([]byte, error) {
	switch {
	case len(s.body) > 0:
		return s.body, nil
	case s.only:
		return nil, io.EOF
	}
	return s.end.Peek(wire.Stdin)
}

func (s *stdin) take(n int) {
	if len(s.body) > 0 {
		s.body = s.body[n:]
		return
	}
	s.taken.Add(uint64(n))
	s.end.Take(wire.Stdin, n)
}

// rest ends the writer unless something came meanwhile.
func (s *stdin) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again {
		s.again = false
		return false
	}
	s.busy = false
	return true
}

// finish gives the command its end of input.
func (s *stdin) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole = true
	_ = s.file.Close() // a pipe: nothing is buffered
}

// close ends the writer; the command is gone. The client learns how much was
// taken, unless that was everything.
func (s *stdin) close() {
	s.mu.Lock()
	s.closed = true
	begun, whole := s.begun, s.whole
	s.mu.Unlock()
	if begun {
		_ = s.file.Close()
	}
	s.waiter.Wait()
	if !whole {
		s.end.Discard(wire.Stdin)
	}
}
