package duplex

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Numbers of an observer.
const (
	observeBuffer = 1 << 20                // bytes that wait for a slow reader; older ones are dropped
	observeHold   = 500 * time.Millisecond // a frame that is early waits so long for what is missing
)

// Observed is what an observer reads: bytes of one stream, and how many bytes of
// that stream it missed just before them.
type Observed struct {
	Stream wire.Stream
	Missed uint64
	Data   []byte
}

// Observer reads the output of a channel along with its holder. It grants no
// credit and asks for nothing, so whatever it does changes nothing for others;
// what it misses it is told, in bytes. It is a Handler for its link.
type Observer struct {
	key   *wire.FrameKey
	epoch uint64

	mu      sync.Mutex
	cond    *sync.Cond
	early   map[uint64]wire.Frame
	nextSeq uint64 // 0 before the first frame
	next    [4]uint64
	joined  [4]bool
	missed  [4]uint64 // dropped or never seen since the last event of the stream
	queue   []Observed
	queued  int
	timer   *time.Timer
	exit    *wire.Exit
	err     error
}

var _ Handler = (*Observer)(nil)

// NewObserver makes an observer of a channel under K_down.
func NewObserver(keyDown wire.Key, epoch uint64) *Observer {
	o := &Observer{key: wire.NewFrameKey(keyDown, subjects.Down), epoch: epoch, early: map[uint64]wire.Frame{}}
	o.cond = sync.NewCond(&o.mu)
	return o
}

// Frame implements Handler.
func (o *Observer) Frame(buf []byte) {
	f, err := o.key.Open(buf)
	if err != nil || f.Attach != 0 || f.Epoch != o.epoch {
		return // not the worker's: an observer only looks
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.exit != nil || o.err != nil {
		return
	}
	if o.nextSeq == 0 {
		o.nextSeq = f.Seq
	}
	if f.Seq < o.nextSeq {
		return
	}
	o.early[f.Seq] = f
	o.advance(len(o.early) > FrameWindow)
	if len(o.early) > 0 && o.timer == nil {
		o.timer = time.AfterFunc(observeHold, o.giveUp)
	}
	o.cond.Broadcast()
}

// giveUp steps over what has been missing for too long.
func (o *Observer) giveUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = nil
	if o.exit == nil && o.err == nil {
		o.advance(true)
		o.cond.Broadcast()
	}
}

// advance takes frames in sequence; with force it steps over holes.
func (o *Observer) advance(force bool) {
	for len(o.early) > 0 {
		f, ok := o.early[o.nextSeq]
		if !ok && !force {
			return
		}
		if !ok {
			least := uint64(0)
			for seq := range o.early {
				if least == 0 || seq < least {
					least = seq
				}
			}
			o.nextSeq = least
			continue
		}
		delete(o.early, f.Seq)
		o.nextSeq++
		o.take(f)
	}
}

func (o *Observer) take(f wire.Frame) {
	switch f.Type {
	case wire.FrameExit, wire.FrameReset:
		x := wire.Exit{Outcome: wire.Outcome{Kind: wire.Unknown}}
		_ = wire.DecodeReply(f.Payload, &x)
		o.exit = &x
		o.missTo(wire.Stdout, x.Totals.Stdout)
		o.missTo(wire.Stderr, x.Totals.Stderr)
	case wire.FrameEOF:
		o.missTo(f.Stream, f.Offset)
	case wire.FrameStdout, wire.FrameStderr:
		if !o.joined[f.Stream] {
			o.joined[f.Stream], o.next[f.Stream] = true, f.Offset
		}
		o.missTo(f.Stream, f.Offset)
		o.next[f.Stream] = f.End()
		o.queue = append(o.queue, Observed{Stream: f.Stream, Missed: o.missed[f.Stream], Data: f.Payload})
		o.missed[f.Stream] = 0
		o.queued += len(f.Payload)
		o.shed()
	}
}

// missTo counts the bytes of a stream up to offset that were not seen.
func (o *Observer) missTo(st wire.Stream, offset uint64) {
	if o.joined[st] && offset > o.next[st] {
		o.missed[st] += offset - o.next[st]
		o.next[st] = offset
	}
}

// shed drops the oldest bytes of a reader that is too slow and counts them
// against the next event of their stream.
func (o *Observer) shed() {
	for o.queued > observeBuffer && len(o.queue) > 1 {
		old := o.queue[0]
		o.queue = o.queue[1:]
		o.queued -= len(old.Data)
		lost := old.Missed + uint64(len(old.Data))
		for i := range o.queue {
			if o.queue[i].Stream == old.Stream {
				o.queue[i].Missed += lost
				lost = 0
				break
			}
		}
		o.missed[old.Stream] += lost
	}
}

// Next waits for the next bytes of either stream. After the last it returns
// what was missed at the end, if anything, with empty Data, and then io.EOF;
// after Close the reason given to it.
func (o *Observer) Next(ctx context.Context) (Observed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.cond.Broadcast()
	})
	defer stop()
	for len(o.queue) == 0 && o.exit == nil && o.err == nil {
		if ctx.Err() != nil {
			return Observed{}, context.Cause(ctx)
		}
		o.cond.Wait()
	}
	if len(o.queue) > 0 {
		e := o.queue[0]
		o.queue = o.queue[1:]
		o.queued -= len(e.Data)
		return e, nil
	}
	for st, n := range o.missed {
		if n > 0 {
			o.missed[st] = 0
			return Observed{Stream: wire.Stream(st), Missed: n}, nil
		}
	}
	if o.exit != nil {
		return Observed{}, io.EOF
	}
	return Observed{}, o.err
}

// Exit is the end of the channel as the worker said it; nil before.
func (o *Observer) Exit() *wire.Exit {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.exit
}

// Close ends the observer; readers get err after what has come.
func (o *Observer) Close(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	o.cond.Broadcast()
}

// ControlMessage implements Handler: control is between the worker and its holder.
func (o *Observer) ControlMessage([]byte) {}

// Stored implements Handler: an observer stores nothing.
func (o *Observer) Stored(uint64, uint64) {}

// Refused implements Handler.
func (o *Observer) Refused(uint64, RefuseReason) {}
