package worker

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// maxTail bounds what is kept of a stream whose command is dead, in bytes. It is
// more than a pipe of an unprivileged process can hold.
const maxTail = 2 << 20

// keptTail bounds what is kept in memory of a stream whose command has ended by
// itself and whose reader grants no credit: a pipe, and what shows its end.
const keptTail = 68 << 10

// copyBelow is the read up to which bytes are copied into a buffer of their
// size, so that a frame that waits for its acknowledgement does not hold 64 KiB.
const copyBelow = 32 << 10

// output pumps a command's stdout and stderr into its end.
type output struct {
	// Set once.
	end      *duplex.End
	audience *audience
	drain    *sandbox.Drain
	buffers  *sync.Pool // of *[]byte, HeaderSize + MaxPayload
	limit    limit

	stdout, stderr source
	reading        atomic.Int32
	sending        atomic.Int32
	read           chan struct{} // closed when both pipes have been read to their ends
	delivered      chan struct{} // closed when the end has taken everything
	pumps          sync.WaitGroup

	mu    sync.Mutex
	final bool // readers stop waiting for good; guarded by mu
}

// limit bounds the bytes of both streams together.
type limit struct {
	on   bool
	left atomic.Int64
	over func() // called when more was written than left allowed
}

// allow takes n bytes off what is left and returns how many of them may pass.
func (l *limit) allow(n int) int {
	if !l.on {
		return n
	}
	left := l.left.Add(-int64(n))
	return max(0, n+int(min(0, left)))
}

// source is one stream of a command: its pipe, and what was read of it and waits
// for credit; spilled bytes come before those in tail. Its pump owns it.
type source struct {
	o     *output
	st    wire.Stream
	file  *os.File
	total atomic.Uint64 // read, and within the limit; anybody may load it
	spill spill
	tail  []byte
}

func newOutput(c *channel, d *sandbox.Drain, buffers *sync.Pool) *output {
	o := &output{
		end: c.end, audience: c.audience, drain: d, buffers: buffers,
		read: make(chan struct{}), delivered: make(chan struct{}),
	}
	o.limit.on = c.exec.MaxOutput > 0
	o.limit.left.Store(c.exec.MaxOutput)
	o.limit.over = func() { c.fate.ask(wire.Limit("total_bytes"), c.grace()) }
	o.reading.Store(2)
	o.sending.Store(2)
	return o
}

// start begins to pump. While flow lasts, a pump waits for credit before it
// reads, or stores what it reads; after flow, which is to end when the tree is
// dead, it reads what is left, and waits for credit with that until ctx ends.
func (o *output) start(flow, ctx context.Context, p *sandbox.Process, spilled func() spill) {
	o.stdout = source{o: o, st: wire.Stdout, file: p.Stdout(), spill: spilled()}
	o.stderr = source{o: o, st: wire.Stderr, file: p.Stderr(), spill: spilled()}
	for _, s := range []*source{&o.stdout, &o.stderr} {
		o.pumps.Go(func() { s.pump(flow, ctx) })
	}
}

// interrupt makes the reader of f stop waiting, once.
func (o *output) interrupt(f *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.final {
		_ = f.SetReadDeadline(time.Unix(0, 1)) // fails for a closed one: nobody waits
	}
}

// again lets the reader of f wait after an interrupt.
func (o *output) again(f *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.final {
		_ = f.SetReadDeadline(time.Time{})
	}
}

// finalize makes all readers stop waiting for good. The sandbox has done so when
// the tree was dead, but an interrupt may have undone it.
func (o *output) finalize() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.final = true
	_ = o.stdout.file.SetReadDeadline(time.Unix(0, 1))
	_ = o.stderr.file.SetReadDeadline(time.Unix(0, 1))
}

func (s *source) pump(flow, ctx context.Context) {
	switch err := s.copy(flow); {
	case err == nil: // read to its end
	case flow.Err() != nil:
		s.rest()
	default:
		s.drop()
	}
	countDown(&s.o.reading, s.o.read)
	s.flush(ctx)
	s.spill.close()
	s.o.end.CloseStream(s.st)
	countDown(&s.o.sending, s.o.delivered)
}

func countDown(n *atomic.Int32, done chan struct{}) {
	if n.Add(-1) == 0 {
		close(done)
	}
}

// errOver says that the command has written more than it may.
var errOver = errors.New("worker: output limit reached")

// errNoCredit says that there is something to read, and no credit for it.
var errNoCredit = errors.New("worker: no credit")

// copy moves bytes as there is credit and stores them as there is none and the
// audience says so, until the stream ends (nil), flow does, or nobody wants more.
func (s *source) copy(flow context.Context) error {
	noWait, cancel := context.WithCancel(flow)
	cancel()
	patience, lose := s.patience(flow)
	defer func() { lose(nil) }()
	for {
		err := errNoCredit
		if s.stored() == 0 {
			err = s.move(noWait, 0)
		}
		if errors.Is(err, errNoCredit) {
			var room int
			if room, err = s.room(noWait, patience); err == nil && s.stored() > 0 {
				err = s.send(room)
			} else if err == nil {
				err = s.move(noWait, room)
			}
		}
		if errors.Is(err, errStore) {
			lose(nil)
			err = s.fill(flow)
			patience, lose = s.patience(flow)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// patience is for one wait for credit after the other: it ends with flow, or with
// errStore when the stream is to be stored instead.
func (s *source) patience(flow context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, lose := context.WithCancelCause(flow)
	s.o.audience.watch(s.st, func() { lose(errStore) })
	return ctx, lose
}

// room waits for credit, and tells the drain when it has to.
func (s *source) room(noWait, patience context.Context) (int, error) {
	n, err := s.o.end.Room(noWait, s.st)
	if !errors.Is(err, context.Canceled) {
		return n, err
	}
	s.o.drain.Block()
	defer s.o.drain.Unblock()
	return s.o.end.Room(patience, s.st)
}

// move waits for something to read, reads at most room bytes once and sends
// them. With no room it asks for credit when there is something to read
// (errNoCredit: there is none), for a quiet stream must not hold what it was
// promised from others. io.EOF: there is nothing more.
func (s *source) move(noWait context.Context, room int) error {
	var whole *[]byte
	var err error
	_, n, readErr := sandbox.ReadReady(s.file, func() []byte {
		if room == 0 {
			if room, err = s.o.end.Room(noWait, s.st); err != nil {
				return nil
			}
		}
		whole = s.o.buffers.Get().(*[]byte)
		return (*whole)[wire.HeaderSize : wire.HeaderSize+room]
	})
	switch {
	case errors.Is(err, context.Canceled):
		return errNoCredit
	case err != nil:
		return err
	case readErr != nil:
		s.o.giveBack(whole)
		return io.EOF // its end, or whatever else leaves nothing to read
	}
	keep := s.o.limit.allow(n)
	buf := (*whole)[:wire.HeaderSize+keep]
	if n < copyBelow {
		buf = append(make([]byte, 0, len(buf)), buf...)
		s.o.giveBack(whole)
	}
	if keep > 0 {
		if err := s.o.end.WriteBuf(s.st, buf); err != nil {
			return err
		}
		s.total.Add(uint64(keep))
	}
	if keep < n {
		s.o.limit.over()
		return errOver
	}
	return nil
}

func (o *output) giveBack(b *[]byte) {
	if b != nil {
		o.buffers.Put(b)
	}
}

// rest reads what the dead command has left in its pipe.
func (s *source) rest() {
	s.each(func(b []byte) bool {
		keep := s.o.limit.allow(len(b))
		s.tail = append(s.tail, b[:keep]...)
		s.total.Add(uint64(keep))
		if keep < len(b) {
			s.o.limit.over()
		}
		return len(s.tail) < maxTail
	})
}

// drop reads and drops, so that a command that is being ended is not held up.
func (s *source) drop() { s.each(func([]byte) bool { return true }) }

func (s *source) each(use func([]byte) bool) {
	scratch := s.o.buffers.Get().(*[]byte)
	defer s.o.buffers.Put(scratch)
	for {
		_, n, err := sandbox.ReadReady(s.file, func() []byte { return (*scratch)[:wire.MaxPayload] })
		if err != nil || !use((*scratch)[:n]) {
			return
		}
	}
}
