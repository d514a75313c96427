package worker

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// maxTail bounds what is kept of a stream whose command is dead, in bytes. It is
// more than a pipe of an unprivileged process can hold.
const maxTail = 2 << 20

// copyBelow is the read up to which bytes are copied into a buffer of their
// size, so that a frame that waits for its acknowledgement does not hold 64 KiB.
const copyBelow = 32 << 10

// output pumps a command's stdout and stderr into its end.
type output struct {
	// Set once.
	end     *duplex.End
	drain   *sandbox.Drain
	buffers *sync.Pool // of *[]byte, HeaderSize + MaxPayload
	limited bool
	over    func() // called when more was written than left allowed

	left      atomic.Int64 // bytes that may still pass, if limited
	stdout    atomic.Uint64
	stderr    atomic.Uint64
	reading   atomic.Int32
	sending   atomic.Int32
	read      chan struct{} // closed when both pipes have been read to their ends
	delivered chan struct{} // closed when the end has taken everything
	pumps     sync.WaitGroup
}

func newOutput(end *duplex.End, drain *sandbox.Drain, buffers *sync.Pool, limit int64, over func()) *output {
	o := &output{
		end: end, drain: drain, buffers: buffers, limited: limit > 0, over: over,
		read: make(chan struct{}), delivered: make(chan struct{}),
	}
	o.left.Store(limit)
	o.reading.Store(2)
	o.sending.Store(2)
	return o
}

// start begins to pump. While flow lasts, a pump waits for credit before it
// reads; after flow, which is to end when the tree is dead, it reads what is
// left, and waits for credit with that until ctx ends.
func (o *output) start(flow, ctx context.Context, p *sandbox.Process) {
	o.pumps.Go(func() { o.pump(flow, ctx, wire.Stdout, p.Stdout(), &o.stdout) })
	o.pumps.Go(func() { o.pump(flow, ctx, wire.Stderr, p.Stderr(), &o.stderr) })
}

func (o *output) pump(flow, ctx context.Context, st wire.Stream, f *os.File, total *atomic.Uint64) {
	var tail []byte
	switch err := o.copy(flow, st, f, total); {
	case err == nil: // read to its end
	case flow.Err() != nil:
		tail = o.rest(f, total)
	default:
		o.drop(f)
	}
	countDown(&o.reading, o.read)
	if len(tail) > 0 {
		// It fails when the channel has failed or is forgotten: nobody reads.
		_, _ = o.end.Write(ctx, st, tail)
	}
	o.end.CloseStream(st)
	countDown(&o.sending, o.delivered)
}

func countDown(n *atomic.Int32, done chan struct{}) {
	if n.Add(-1) == 0 {
		close(done)
	}
}

// errOver says that the command has written more than it may.
var errOver = errors.New("worker: output limit reached")

// copy moves bytes as there is credit, until the stream ends (nil), flow does,
// or nobody wants more.
func (o *output) copy(flow context.Context, st wire.Stream, f *os.File, total *atomic.Uint64) error {
	noWait, cancel := context.WithCancel(flow)
	cancel()
	var room int
	var whole *[]byte
	get := func() []byte {
		whole = o.buffers.Get().(*[]byte)
		return (*whole)[wire.HeaderSize : wire.HeaderSize+room]
	}
	for {
		var err error
		if room, err = o.room(noWait, flow, st); err != nil {
			return err
		}
		whole = nil
		_, n, err := sandbox.ReadReady(f, get)
		if err != nil {
			o.giveBack(whole)
			return nil // its end, or whatever else leaves nothing to read
		}
		keep := o.allow(n)
		buf := (*whole)[:wire.HeaderSize+keep]
		if n < copyBelow {
			buf = append(make([]byte, 0, len(buf)), buf...)
			o.giveBack(whole)
		}
		if keep > 0 {
			if err := o.end.WriteBuf(st, buf); err != nil {
				return err
			}
			total.Add(uint64(keep))
		}
		if keep < n {
			o.over()
			return errOver
		}
	}
}

// room waits for credit, and tells the drain when it has to.
func (o *output) room(noWait, flow context.Context, st wire.Stream) (int, error) {
	n, err := o.end.Room(noWait, st)
	if !errors.Is(err, context.Canceled) {
		return n, err
	}
	o.drain.Block()
	defer o.drain.Unblock()
	return o.end.Room(flow, st)
}

// allow takes n bytes off what is left of the limit and returns how many of
// them may pass.
func (o *output) allow(n int) int {
	if !o.limited {
		return n
	}
	left := o.left.Add(-int64(n))
	return max(0, n+int(min(0, left)))
}

func (o *output) giveBack(b *[]byte) {
	if b != nil {
		o.buffers.Put(b)
	}
}

// rest reads what the dead command has left in its pipe.
func (o *output) rest(f *os.File, total *atomic.Uint64) (tail []byte) {
	o.each(f, func(b []byte) bool {
		keep := o.allow(len(b))
		tail = append(tail, b[:keep]...)
		total.Add(uint64(keep))
		if keep < len(b) {
			o.over()
		}
		return len(tail) < maxTail
	})
	return tail
}

// drop reads and drops, so that a command that is being ended is not held up.
func (o *output) drop(f *os.File) { o.each(f, func([]byte) bool { return true }) }

func (o *output) each(f *os.File, use func([]byte) bool) {
	scratch := o.buffers.Get().(*[]byte)
	defer o.buffers.Put(scratch)
	for {
		_, n, err := sandbox.ReadReady(f, func() []byte { return (*scratch)[:wire.MaxPayload] })
		if err != nil || !use((*scratch)[:n]) {
			return
		}
	}
}
