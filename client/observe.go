package client

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Observation is bytes of one output stream as an observer sees them.
type Observation struct {
	Stderr bool  // else of standard output
	Missed int64 // bytes of this stream just before Data that the observer has not seen
	Data   []byte
}

// Observer reads the output of a channel beside its holder, from the moment that
// it came. It has no right to anything else and grants no credit: whatever it
// does, the command and its holder do not notice. What it is too slow for, or
// what the network loses, it is told in bytes.
type Observer struct {
	// Set once.
	c     *Client
	place place
	port  port
	obs   *duplex.Observer
	job   *job
	done  chan struct{} // closed with result

	heard atomic.Int64 // monotonic age of the last frame, against began
	began time.Time
	exit  chan struct{} // closed when EXIT is there
	once  sync.Once

	result result // set before done is closed
}

// Times of an observer, which has no keepalive of its own.
const (
	observeTick  = time.Second
	observeQuiet = 10 * time.Second // without a frame the record is asked, and then as often
)

// Observe reads along. lease may be "" as in GetChannel. Errors: NOT_FOUND,
// CHANNEL_ENDED with the detail "outcome", those of the gate. The caller owes a
// Close.
func (c *Client) Observe(ctx context.Context, lease, channel string) (*Observer, error) {
	info, err := c.GetChannel(ctx, lease, channel)
	if err != nil {
		return nil, err
	}
	at, err := c.placeOf(ctx, info)
	if err != nil {
		return nil, err
	}
	p, err := c.openPort(ctx, at)
	if err != nil {
		return nil, err
	}
	reply, err := c.askAttach(ctx, subjects.APIObserve, at, nil)
	if err == nil && reply.Outcome != nil {
		err = wire.Errorf(CodeChannelEnded, "the command has ended already: %s; attach to read what is left of its output", reply.Outcome).
			With(detailOutcome, reply.Outcome.String())
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	o := &Observer{
		c: c, place: at, port: p, obs: duplex.NewObserver(wire.Key(reply.KeyDown), reply.Epoch),
		done: make(chan struct{}), exit: make(chan struct{}), began: time.Now(),
	}
	p.Bind((*observed)(o))
	if o.job = c.crew.start(o.watch); o.job == nil {
		p.Close()
		return nil, errClosed()
	}
	return o, nil
}

// observed is the handler of an observer's port.
type observed Observer

func (o *observed) Frame(buf []byte) {
	o.heard.Store(int64(time.Since(o.began)))
	o.obs.Frame(buf)
	(*Observer)(o).look()
}

func (o *observed) ControlMessage([]byte)               {}
func (o *observed) Stored(uint64, uint64)               {}
func (o *observed) Refused(uint64, duplex.RefuseReason) {}

func (o *Observer) look() bool {
	ended := o.obs.Exit() != nil
	if ended {
		o.once.Do(func() { close(o.exit) })
	}
	return ended
}

// watch waits for the end, and asks the record when nothing comes.
func (o *Observer) watch(ctx context.Context) {
	o.result = o.await(ctx)
	o.obs.Close(o.result.reason())
	close(o.done)
	o.port.Close()
}

// reason is what a reader is told after the last bytes if EXIT is not there.
func (r result) reason() error {
	if r.err != nil {
		return r.err
	}
	return io.EOF
}

func (o *Observer) await(ctx context.Context) result {
	t := time.NewTicker(observeTick)
	defer t.Stop()
	for asked := time.Now(); ; {
		select {
		case <-o.exit:
			return result{outcome: o.obs.Exit().Outcome}
		case <-ctx.Done():
			return result{Outcome{Kind: Unknown}, wire.Errorf(CodeChannelEnded, "the observer was closed").With(detailLayer, string(LayerTransport))}
		case <-t.C:
		}
		quiet := time.Since(o.began) - time.Duration(o.heard.Load())
		if o.look() || quiet < observeQuiet || time.Since(asked) < observeQuiet {
			continue
		}
		asked = time.Now()
		if r, ended := o.ask(ctx); ended {
			return r
		}
	}
}

// ask reads the record; of a channel that has ended, the end is read from the log.
func (o *Observer) ask(ctx context.Context) (result, bool) {
	info, err := o.c.record(ctx, o.place.lease, o.place.id)
	if wire.CodeOf(err) == CodeNotFound {
		return result{Outcome{Kind: Unknown}, err}, true
	}
	if err != nil || info.State != recordEnded || info.Outcome == nil {
		return result{}, false
	}
	if err := o.c.readLog(ctx, o.place, o.obs.Frame); err != nil {
		o.c.opts.Log.Warn().Err(err).Str("channel", o.place.id.String()).Msg("the channel's log was not read to its end")
	}
	if x := o.obs.Exit(); x != nil {
		return result{outcome: x.Outcome}, true
	}
	rec := endRecord{outcome: *info.Outcome}
	return result{*info.Outcome, rec.failure()}, true
}

// Next waits for the next bytes of either stream; the caller may keep them. At
// the end an Observation without Data may tell what was missed, and then comes
// io.EOF, or an error if the end of the output was not seen.
func (o *Observer) Next(ctx context.Context) (Observation, error) {
	e, err := o.obs.Next(ctx)
	return Observation{Stderr: e.Stream == wire.Stderr, Missed: int64(e.Missed), Data: e.Data}, observeError(ctx, err)
}

func observeError(ctx context.Context, err error) error {
	if err == io.EOF {
		return err
	}
	return typed(ctx, "observing", err)
}

// Done is closed when the outcome is known; there may be bytes left to read.
func (o *Observer) Done() <-chan struct{} { return o.done }

// Wait waits for the end of the command and returns its outcome; with an error
// it is what the coordinators have on record, or unknown.
func (o *Observer) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-o.done:
		return o.result.outcome, o.result.err
	case <-ctx.Done():
		return Outcome{Kind: Unknown}, typed(ctx, "waiting for the end", context.Cause(ctx))
	}
}

// Close ends the observing. Calling it again does nothing.
func (o *Observer) Close() {
	o.job.cancel()
	<-o.done
}
