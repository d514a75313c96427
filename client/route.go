package client

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Times of the keepalive (docs/PROTOCOL.md, "Keepalive"), each ± 20 %.
const (
	keepalivePeriod  = 5 * time.Second
	keepaliveTimeout = 3 * time.Second
	askMin           = time.Second // between questions about a silent worker's channels
	askMax           = 5 * time.Second
)

// route is the keepalive with one worker for all channels that this client has
// there: one goroutine, however many they are.
type route struct {
	c    *Client
	name string
	job  *job

	channels map[uuid.UUID]*Channel // guarded by c.mu

	// Owned by keep.
	silent bool // the worker has missed a keepalive and not answered since
	lost   bool // its loss was told
}

// join adds a channel to its route's keepalive.
func (c *Client) join(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.routes[ch.routeName]
	if r == nil {
		r = &route{c: c, name: ch.routeName, channels: map[uuid.UUID]*Channel{}}
		c.routes[ch.routeName] = r
		r.job = c.crew.start(r.keep)
	}
	r.channels[ch.id] = ch
}

// leave takes a channel off; the last one ends the keepalive.
func (c *Client) leave(ch *Channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.routes[ch.routeName]
	if r == nil || r.channels[ch.id] == nil {
		return
	}
	delete(r.channels, ch.id)
	if len(r.channels) > 0 {
		return
	}
	delete(c.routes, ch.routeName)
	if r.job != nil {
		r.job.cancel()
	}
}

func (r *route) snapshot() []*Channel {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	out := make([]*Channel, 0, len(r.channels))
	for _, ch := range r.channels {
		out = append(out, ch)
	}
	return out
}

func (r *route) channel(id uuid.UUID) *Channel {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.channels[id]
}

// keep sends keepalives until ctx ends. While something is wrong it asks the
// coordinators for the records, at first often.
func (r *route) keep(ctx context.Context) {
	wait, ask := keepalivePeriod, askMin
	for r.c.pause(ctx, wait) {
		if r.beat(ctx) {
			wait, ask = keepalivePeriod, askMin
			continue
		}
		wait, ask = ask, min(ask*3/2, askMax)
	}
}

// beat sends one keepalive and deals with its answer. It reports whether the
// worker knows every channel.
func (r *route) beat(ctx context.Context) bool {
	channels := r.snapshot()
	var gone []*Channel
	for len(channels) > 0 {
		var body []byte
		n := 0
		for n < len(channels) && n < wire.KeepaliveMax {
			body = channels[n].end.AppendProbe(body)
			n++
		}
		batch := channels[:n]
		channels = channels[n:]
		if len(body) == 0 {
			continue
		}
		answered, unknown := r.exchange(ctx, body)
		if !answered {
			r.missed(ctx, batch, channels)
			return false
		}
		gone = append(gone, unknown...)
	}
	if r.silent && ctx.Err() == nil && r.c.bus.Up() {
		r.silent, r.lost = false, false
		r.c.notify(Notice{Kind: WorkerBack, Route: r.name, Text: "the worker answers again"})
	}
	r.ask(ctx, gone, true)
	return len(gone) == 0
}

// exchange sends the probes and hands the answers to their channels; unknown
// are those that the worker does not have. A connection that is down is no
// fault of the worker and counts as answered.
func (r *route) exchange(ctx context.Context, probes []byte) (answered bool, unknown []*Channel) {
	downs := r.c.downs.Load()
	ctx, cancel := context.WithTimeout(ctx, keepaliveTimeout)
	defer cancel()
	answer, err := r.c.bus.Request(ctx, subjects.KeepaliveUp(r.c.opts.Tenant, r.name, r.c.id.String()), probes)
	if err != nil {
		ours := !r.c.bus.Up() || r.c.downs.Load() != downs || errors.Is(err, context.Canceled)
		return ours, nil
	}
	for len(answer) > 0 {
		var msg []byte
		if msg, answer, err = wire.SplitKeepalive(answer); err != nil {
			break // the rest is not of this protocol; the next keepalive asks again
		}
		id, _, _ := wire.PeekChannel(msg) // SplitKeepalive has checked the size
		ch := r.channel(id)
		switch {
		case ch == nil:
		case wire.ControlKind(msg[0]) == wire.ControlGone:
			unknown = append(unknown, ch)
		default:
			ch.end.ControlMessage(msg)
		}
	}
	return true, unknown
}

// missed says once that the worker is silent and asks what became of its channels.
func (r *route) missed(ctx context.Context, lists ...[]*Channel) {
	if ctx.Err() != nil {
		return
	}
	if !r.silent {
		r.silent = true
		r.c.notify(Notice{Kind: WorkerSilent, Route: r.name,
			Text: "the worker does not answer; asking the coordinators what became of it"})
	}
	for _, channels := range lists {
		if !r.ask(ctx, channels, false) {
			return
		}
	}
}

// ask reads the record of each channel and believes it. It reports false when
// no coordinator answers.
func (r *route) ask(ctx context.Context, channels []*Channel, gone bool) bool {
	for _, ch := range channels {
		var reply wire.ChannelReply
		err := r.c.call(ctx, subjects.APIChannel, wire.ChannelRequest{Lease: ch.lease, Channel: ch.id}, &reply)
		switch code := wire.CodeOf(err); {
		case err == nil && reply.Channel.State == recordEnded:
			r.tellLost(reply.Channel.Outcome)
			ch.setRecord(reply.Channel, gone)
		case code == CodeNotFound && gone:
			ch.end.Fail(endError(CodeChannelEnded, LayerWorker, Outcome{},
				"neither the worker nor the coordinators know the channel any more; how the command ended is not known"))
		case err != nil && code != CodeNotFound:
			return false
		}
	}
	return true
}

func (r *route) tellLost(o *Outcome) {
	if o != nil && o.Kind == WorkerLost && !r.lost {
		r.lost = true
		r.c.notify(Notice{Kind: WorkerGone, Route: r.name, Text: "the worker is lost; its commands are over on record, and may run on there until it restarts"})
	}
}
