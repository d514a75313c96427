package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Position is offsets in the streams of a channel, in bytes from their starts.
type Position struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
	Stdin  int64 `json:"stdin"`
}

// AttachOptions of Attach and Resume.
type AttachOptions struct {
	// From is what the application has of the outputs: they go on there, and what
	// is before it is acknowledged. What an earlier client took beyond it cannot be
	// given again; it is counted in the outcome data_lost. Nil: the outputs go on
	// where the earlier client has acknowledged them; see Channel.AttachedAt.
	// From.Stdin is not looked at: the worker knows what it has taken.
	From *Position
}

func (o AttachOptions) offsets() (*wire.Offsets, error) {
	switch f := o.From; {
	case f == nil:
		return nil, nil
	case f.Stdout < 0 || f.Stderr < 0:
		return nil, wire.Errorf(CodeInvalidArgument, "an offset to go on from is negative")
	default:
		return &wire.Offsets{Stdout: uint64(f.Stdout), Stderr: uint64(f.Stderr)}, nil
	}
}

// WithWholeStdin is WithStdin for a reader that begins at the first byte of the
// command's input: an attach skips what the worker has taken already.
func WithWholeStdin(r io.Reader) Option { return func(o *options) { o.stdin, o.skip = r, true } }

// holding is what makes this client the one that holds a channel.
type holding struct {
	attach         uint32
	keyUp, keyDown wire.Key
	at             Position // where the streams began for this client
	lost, lostFrom int64    // bytes before at that the application has not got
}

// withMissing adds to an end what was lost before this client came.
func (h *holding) withMissing(r result) result {
	if h.lost == 0 || r.outcome.Kind == Unknown {
		return r
	}
	out := Outcome{Kind: DataLost, Bytes: h.lost, Offset: h.lostFrom, Code: r.outcome.Code}
	if r.outcome.Kind == DataLost {
		out.Bytes += r.outcome.Bytes
	}
	return result{out, endError(CodeChannelEnded, LayerTransport, out,
		"the command ended (%s), and %d bytes of its output from offset %d on were taken by an earlier client, beyond what this one was to go on from",
		r.outcome, h.lost, h.lostFrom)}
}

// begin notes where the streams begin, and what of from cannot be served.
func (h *holding) begin(at Position, from *Position) {
	h.at = at
	if from == nil {
		return
	}
	for _, s := range [...]struct{ at, from int64 }{{at.Stdout, from.Stdout}, {at.Stderr, from.Stderr}} {
		if s.at <= s.from {
			continue
		}
		if h.lost == 0 {
			h.lostFrom = s.from
		}
		h.lost += s.at - s.from
	}
}

// Attach makes this client the one that holds an open channel, in the place of
// whoever held it: that one is told FENCED. The streams go on where they stand,
// every byte once. lease may be "": the channel is then looked for among all of
// the tenant's. Options that are about the opening of a command have no meaning
// here. Of a channel that has ended, what the log still has can be read.
//
// Errors: NOT_FOUND, INVALID_ARGUMENT (also for a From that was never written),
// CONFLICT when another attach came first, WORKER_NOT_RUNNING, those of the gate.
func (c *Client) Attach(ctx context.Context, lease, channel string, o AttachOptions, opts ...Option) (*Channel, error) {
	so, from, err := o.check(opts)
	if err != nil {
		return nil, err
	}
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
	reply, err := c.askAttach(ctx, subjects.APIAttach, at, from)
	if err != nil {
		p.Close()
		return nil, err
	}
	at.epoch.N = reply.Epoch
	if reply.Attach == 0 {
		p.Close()
		info.Outcome = reply.Outcome
		return c.readOn(ctx, at, wire.Key(reply.KeyDown), info, o, so)
	}
	return c.goOn(p, at, reply, o, so)
}

func (o AttachOptions) check(opts []Option) (options, *wire.Offsets, error) {
	so, err := Command{Stdin: StdinPipe}.options(opts)
	if err != nil {
		return so, nil, err
	}
	from, err := o.offsets()
	return so, from, err
}

// placeOf completes what the record says of a channel with its lease's epoch.
func (c *Client) placeOf(ctx context.Context, info ChannelInfo) (place, error) {
	var reply wire.LeaseReply
	if err := c.call(ctx, subjects.APIGet, wire.LeaseRequest{Lease: info.Lease}, &reply); err != nil {
		return place{}, err
	}
	at := place{id: info.ID, lease: info.Lease, epoch: reply.Lease.Epoch, routeName: info.Route}
	if at.routeName == "" {
		at.routeName = reply.Lease.Route
	}
	if at.routeName == "" {
		return at, wire.Errorf(CodeUnavailable, "the channel has no worker yet; ask again")
	}
	return at, nil
}

// askAttach asks the gate: api attach or observe. A request that may have been
// carried out is not repeated, unless the connection was lost: every attach takes
// the channel from the one before.
func (c *Client) askAttach(ctx context.Context, verb string, at place, from *wire.Offsets) (wire.AttachReply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	req := wire.Encode(wire.AttachRequest{
		Lease: at.lease, Epoch: at.epoch, Channel: at.id, From: from, Credit: firstCredit(),
	})
	var reply wire.AttachReply
	err := c.exchange(ctx, subjects.API(c.opts.Tenant, verb), req, c.opts.RequestTimeout, &reply)
	if err == nil {
		err = checkAttachReply(at.id, verb == subjects.APIAttach, reply)
	}
	return reply, err
}

func firstCredit() wire.DownCredit {
	return wire.DownCredit{Stdout: duplex.DefaultWindow, Stderr: duplex.DefaultWindow, FrameLimit: duplex.FrameWindow}
}

func checkAttachReply(id uuid.UUID, toHold bool, r wire.AttachReply) error {
	ok := r.Channel == id && len(r.KeyDown) == wire.KeySize
	if toHold && r.Outcome == nil {
		ok = ok && r.Attach > 0 && len(r.KeyUp) == wire.KeySize
	}
	if toHold && r.Outcome != nil {
		ok = ok && r.Attach == 0
	}
	if !ok {
		return wire.Errorf(CodeInternal, "the answer to the attach does not fit the request")
	}
	return nil
}

// goOn is the channel of a reply that gives it to this client. It owns p.
func (c *Client) goOn(p port, at place, r wire.AttachReply, o AttachOptions, so options) (*Channel, error) {
	ch, err := c.onPort(p, at, wire.ModeDuplex, so)
	if err != nil {
		return nil, err
	}
	ch.stdin = true
	ch.holding = holding{attach: r.Attach, keyUp: wire.Key(r.KeyUp), keyDown: wire.Key(r.KeyDown)}
	ch.holding.begin(Position{
		Stdout: int64(r.Down.Stdout.Acked), Stderr: int64(r.Down.Stderr.Acked), Stdin: int64(r.Up.NextOffset),
	}, o.From)
	ch.end.Start(duplex.Grant{
		Attach: r.Attach, KeyUp: ch.holding.keyUp, KeyDown: ch.holding.keyDown,
		Credit: [4]uint64{wire.Stdin: r.Up.Limit}, Frames: r.Up.FrameLimit,
		Resume: &duplex.Resume{Up: r.Up, Down: r.Down},
	})
	ch.startPumps()
	if !c.watch(ch) {
		ch.end.Fail(errClosed())
		ch.pumps.Wait()
		ch.free()
		return nil, errClosed()
	}
	return ch, nil
}

// Saved is what another process needs to go on with a channel in this client's
// place, without a coordinator. It is a secret: whoever has it can take the
// channel over until a newer attach holds it.
type Saved struct {
	Tenant   string     `json:"tenant"`
	Lease    string     `json:"lease"`
	Epoch    wire.Epoch `json:"epoch"`
	Channel  string     `json:"channel"`
	Route    string     `json:"route"`
	Attach   uint32     `json:"attach"`
	KeyUp    []byte     `json:"keyUp"`
	KeyDown  []byte     `json:"keyDown"`
	Position Position   `json:"position"` // as Channel.Position
}

// Save returns what Resume needs. All but its Position stays the same for as long
// as this client holds the channel.
func (c *Channel) Save() Saved {
	return Saved{
		Tenant: c.c.opts.Tenant, Lease: c.lease, Epoch: c.epoch, Channel: c.ID(), Route: c.routeName,
		Attach: c.holding.attach, KeyUp: slices.Clone(c.holding.keyUp[:]), KeyDown: slices.Clone(c.holding.keyDown[:]),
		Position: c.Position(),
	}
}

// place checks what was saved.
func (s Saved) place(tenant string) (at place, up, down wire.Key, err error) {
	id, err := uuid.Parse(s.Channel)
	switch {
	case err != nil || wire.CheckChannelID(id) != nil || wire.CheckLeaseID(s.Lease) != nil,
		wire.CheckToken("route", s.Route) != nil, s.Attach == 0,
		len(s.KeyUp) != wire.KeySize, len(s.KeyDown) != wire.KeySize:
		return at, up, down, wire.Errorf(CodeInvalidArgument, "this is not what Channel.Save returned")
	case s.Tenant != tenant:
		return at, up, down, wire.Errorf(CodeInvalidArgument, "the saved channel is of tenant %q and this client of %q", s.Tenant, tenant)
	}
	return place{id: id, lease: s.Lease, epoch: s.Epoch, routeName: s.Route}, wire.Key(s.KeyUp), wire.Key(s.KeyDown), nil
}

// Resume is Attach with what an earlier process of this application has saved:
// it asks the worker itself, so it works while no coordinator does. To go on
// exactly where the application is, give what it has as o.From, &s.Position if it
// was saved together with the data.
//
// Errors: FENCED when a newer attach holds the channel, DEADLINE_EXCEEDED when
// the worker does not answer and no record says that the channel has ended,
// INVALID_ARGUMENT.
func (c *Client) Resume(ctx context.Context, s Saved, o AttachOptions, opts ...Option) (*Channel, error) {
	so, from, err := o.check(opts)
	if err != nil {
		return nil, err
	}
	at, up, down, err := s.place(c.opts.Tenant)
	if err != nil {
		return nil, err
	}
	p, err := c.openPort(ctx, at)
	if err != nil {
		return nil, err
	}
	reply, over, err := c.askWorker(ctx, at, duplex.NewResumer(p, at.id, s.Attach, up, down), from)
	switch {
	case over != nil:
		p.Close()
		return c.readOn(ctx, at, down, *over, o, so)
	case err != nil:
		p.Close()
		return nil, err
	}
	return c.goOn(p, at, *reply, o, so)
}

// errOver ends the wait for a worker's answer when the record has an end.
var errOver = errors.New("client: the channel has ended")

// askWorker asks for the next attach on a port of its own, beside the one that
// the channel goes on with. A worker that has forgotten the channel, or is gone,
// does not answer: over is then the record of its end.
func (c *Client) askWorker(ctx context.Context, at place, r *duplex.Resumer, from *wire.Offsets) (reply *wire.AttachReply, over *ChannelInfo, err error) {
	p, err := c.openPort(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close()
	p.Bind(r)
	ctx, stop := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer stop()
	asking, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for c.pause(asking, askMin) {
			if info, err := c.record(asking, at.lease, at.id); err == nil && info.State == recordEnded {
				over = &info
				cancel(errOver)
			}
		}
	})
	reply, err = r.Run(asking, from, firstCredit())
	cancel(nil)
	watch.Wait()
	switch {
	case err == nil:
		return reply, nil, checkAttachReply(at.id, true, *reply)
	case errors.Is(err, errOver):
		return nil, over, nil
	}
	return nil, nil, typed(ctx, "the worker's answer to the attach", err)
}

// AttachedAt is where the streams began for this client: zero for the one that
// opened the channel. Stdin is the offset of the first byte that Write sends.
func (c *Channel) AttachedAt() Position { return c.holding.at }

// Position is what the application has taken of the outputs so far, and
// StdinAccepted.
func (c *Channel) Position() Position {
	return Position{
		Stdout: int64(c.end.Consumed(wire.Stdout)), Stderr: int64(c.end.Consumed(wire.Stderr)), Stdin: c.StdinAccepted(),
	}
}

// StdinAccepted is how many bytes of standard input the worker has taken, as far
// as it has told: they reach the command even if this client dies. The worker
// has the exact number at every attach.
func (c *Channel) StdinAccepted() int64 { return max(c.holding.at.Stdin, c.TakenByProcess()) }

// Detach gives the channel up on purpose and leaves the command running; what
// becomes of it is for OnDisconnect, at once. Output that was not read goes to
// the next one who attaches. Wait then returns unknown with CHANNEL_ENDED.
// Errors as Signal; after one the channel is as before.
func (c *Channel) Detach(ctx context.Context) error {
	if err := c.control(ctx, wire.Request{Verb: wire.VerbDetach}); err != nil {
		return err
	}
	c.detached.Store(true)
	c.end.Fail(endError(CodeChannelEnded, LayerTransport, Outcome{}, "this client has detached; the command goes on without it"))
	<-c.done
	c.free()
	return nil
}

// sayGoodbye says last what was taken; what is read from now on would be read twice.
func (c *Channel) sayGoodbye() {
	c.dropped[wire.Stdout].Store(true)
	c.dropped[wire.Stderr].Store(true)
	if b := c.end.AppendProbe(nil); len(b) > 0 {
		_ = c.port.Control(b) // if it is lost, the next client gets some bytes again, and is told so
	}
}

// fencedTimeout bounds the question before a kill.
const fencedTimeout = time.Second

// fenced asks the worker whether another client holds the channel now, which this
// one may not have heard yet. It is asked before the command is ended for this
// client's sake: that may be somebody else's by now.
func (c *Channel) fenced(ctx context.Context) bool {
	probe := c.end.AppendProbe(nil)
	if len(probe) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, fencedTimeout)
	defer cancel()
	answer, err := c.c.bus.Request(ctx, subjects.KeepaliveUp(c.c.opts.Tenant, c.routeName, c.c.id.String()), probe)
	for err == nil && len(answer) > 0 {
		var msg []byte
		if msg, answer, err = wire.SplitKeepalive(answer); err == nil {
			if _, ferr := wire.DecodeFenced(msg, c.holding.keyDown); ferr == nil {
				return true
			}
		}
	}
	return false
}

func errFenced() *Error {
	return endError(CodeFenced, LayerTransport, Outcome{}, "another client has attached to the channel and holds it now")
}
