package worker

import (
	"bytes"
	"context"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// open is wk open.
func (w *Worker) open(ctx context.Context, o wire.OpenOrder, body []byte) (wire.OpenedReply, error) {
	reply := wire.OpenedReply{Channel: o.Channel, Instance: w.instance}
	exec, err := checkOpen(o, body)
	if err != nil {
		return reply, err
	}
	c, outcome, err := w.reserve(ctx, o, exec)
	if err != nil {
		return reply, err
	}
	if c == nil {
		reply.Outcome = &outcome
		return reply, nil
	}
	select {
	case <-c.opened:
	case <-ctx.Done():
		return reply, errDraining()
	}
	if c.err != nil {
		return reply, c.err
	}
	reply.Credit.Stdin, reply.Credit.FrameLimit = c.end.Credit()
	reply.Outcome = w.table.outcome(c)
	return reply, nil
}

// checkOpen checks all that can be told from the order alone.
func checkOpen(o wire.OpenOrder, body []byte) (*wire.Exec, error) {
	if err := checkLeaseHead(o.OrderHead); err != nil {
		return nil, err
	}
	if err := wire.CheckChannelID(o.Channel); err != nil {
		return nil, err
	}
	hash := wire.BodyHash(body)
	if !bytes.Equal(hash[:], o.BodySHA256) {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the command is not the one that the order is for")
	}
	if len(o.Secret) != wire.SecretSize {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the channel secret is not %d bytes", wire.SecretSize)
	}
	if err := checkCredit(o.Credit); err != nil {
		return nil, err
	}
	exec, err := wire.DecodeExec(body)
	switch {
	case err != nil:
		return nil, err
	case exec.Mode != o.Mode:
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the command's mode is not the order's")
	case exec.Stdin == wire.StdinPTY:
		return nil, wire.Errorf(wire.CodeInvalidArgument, "this worker has no terminals yet; use stdin %q", wire.StdinPipe)
	case o.Mode == wire.ModeDuplex && o.ProviderLeaseID == "":
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the order names no provider lease id")
	}
	return exec, nil
}

// reserve finds or begins the channel of an order. Without one there is the
// outcome of a channel that has ended.
func (w *Worker) reserve(ctx context.Context, o wire.OpenOrder, exec *wire.Exec) (c *channel, ended wire.Outcome, err error) {
	t := w.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.open[o.Channel]; c != nil {
		if !c.same(o) {
			return nil, ended, errOtherChannel()
		}
		return c, ended, nil
	}
	if e, ok := t.ended.get(o.Channel); ok {
		switch {
		case e.outcome.Kind == "":
			return nil, ended, wire.Errorf(wire.CodeChannelEnded, "the channel was closed before it was opened; open a new one")
		case e.tenant != o.Tenant || e.lease != o.Lease || !bytes.Equal(e.hash[:], o.BodySHA256):
			return nil, ended, errOtherChannel()
		}
		return nil, e.outcome, nil
	}
	h, err := t.place(o)
	if err != nil {
		return nil, ended, err
	}
	if c, err = w.newChannel(o, exec, h); err != nil {
		return nil, ended, err
	}
	t.open[o.Channel] = c
	h.running++
	// Under mu: Run closes the table before it waits for the lives.
	w.lives.Go(func() { w.life(ctx, c) })
	return c, ended, nil
}

func errOtherChannel() error {
	return wire.Errorf(wire.CodeConflict, "the channel id is in use for another command; make a new one")
}

// place finds the lease that a new channel may run on. Called with mu held.
func (t *table) place(o wire.OpenOrder) (*held, error) {
	if t.draining {
		return nil, errDraining()
	}
	if err := t.epochs.check(o.Lease, o.Epoch); err != nil {
		return nil, err
	}
	h := t.leases[o.Lease]
	if h == nil || h.tenant != o.Tenant || h.epoch != o.Epoch || h.ending || h.sandbox() == nil ||
		o.ProviderLeaseID != "" && o.ProviderLeaseID != h.box.ProviderLeaseID() {
		return nil, wire.Errorf(wire.CodeSandboxNotCached,
			"the worker has no sandbox for this lease, perhaps since it was restarted; release the lease and acquire a new one")
	}
	limit := t.channels
	if o.Limits.Channels > 0 {
		limit = o.Limits.Channels
	}
	if h.running >= limit {
		return nil, wire.Errorf(wire.CodeRouteBusy, "%d channels are open on the lease, its limit; wait for one to end", h.running)
	}
	return h, t.makeRoom(h)
}

// makeRoom keeps the channels of h that have ended, and whose readers have not
// taken everything, within their bound: the one that has waited longest for a
// reader who is away is forgotten. Called with mu held.
func (t *table) makeRoom(h *held) error {
	if h.untaken < t.untaken {
		return nil
	}
	var oldest *channel
	for _, c := range t.open {
		if c.held != h || c.outcome == nil || c.left {
			continue
		}
		if away, _ := c.audience.isAway(); away && (oldest == nil || c.at.Before(oldest.at)) {
			oldest = c
		}
	}
	if oldest == nil {
		return wire.Errorf(wire.CodeTooManyRequests,
			"%d channels of the lease have ended and their readers have not taken everything; read them to their ends first", h.untaken)
	}
	oldest.log.Warn().Msg("forgotten before its reader came")
	oldest.left = true
	close(oldest.leave)
	return nil
}

// newChannel makes a channel that nothing has happened to yet.
func (w *Worker) newChannel(o wire.OpenOrder, exec *wire.Exec, h *held) (*channel, error) {
	port, err := w.mux.Open(subjects.Channel{Tenant: o.Tenant, Route: w.route, Lease: o.Lease, Channel: o.Channel.String()})
	if err != nil {
		return nil, err
	}
	c := &channel{
		order: o, exec: exec, held: h, port: port, fate: newFate(),
		stdin: &stdin{body: exec.StdinData, only: len(exec.StdinData) > 0},
		log:   w.log.With().Str("lease", o.Lease).Stringer("channel", o.Channel).Logger(),

		audience: &audience{spills: w.cfg.Limits.Spill > 0},

		opened: make(chan struct{}), dead: make(chan struct{}),
		finish: finish{leave: make(chan struct{})},
	}
	c.end = duplex.New(duplex.Config{
		Side: duplex.Worker, Channel: o.Channel, Epoch: o.Epoch.N, Link: port,
		Readable: func(wire.Stream) { c.stdin.readable() },
		Request:  c.request,
		Pool:     h.pool(),
		NextKey:  func(attach uint32) wire.Key { return wire.KeyUp(o.Secret, attach) },
		Attached: func(uint32) { c.audience.back() },
		Failed:   c.failed,
	})
	c.stdin.end = c.end
	return c, nil
}

// outcome is a channel's, nil while it has none.
func (t *table) outcome(c *channel) *wire.Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.outcome
}

// conclude notes a channel's outcome and gives its place on the lease back.
func (t *table) conclude(c *channel, o wire.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.outcome == nil {
		c.outcome, c.at = &o, time.Now()
		c.held.running--
		c.held.untaken++
	}
}

// forget takes a channel out of the table. One with an outcome is remembered.
func (t *table) forget(c *channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c.order.Channel)
	if c.outcome != nil {
		c.held.untaken--
		t.ended.put(c.order.Channel, endedChannel{
			tenant: c.order.Tenant, lease: c.order.Lease, hash: [32]byte(c.order.BodySHA256), outcome: *c.outcome,
		})
		return
	}
	c.held.running--
}

// close is wk close. A channel that is not known yet will not be opened later.
func (w *Worker) close(o wire.CloseOrder) (wire.ProbeReply, error) {
	reply := wire.ProbeReply{Instance: w.instance, State: w.table.state()}
	if err := checkLeaseHead(o.OrderHead); err != nil {
		return reply, err
	}
	c, err := w.table.closing(o)
	if c == nil || err != nil {
		return reply, err
	}
	outcome := wire.Outcome{Kind: o.Outcome, Reason: o.Reason}
	if outcome.Kind == "" {
		outcome.Kind = wire.EndedByRequest
	}
	// A client's wish leaves the command its grace; what a coordinator has given
	// up must not run on.
	grace := c.grace()
	if outcome.Kind != wire.EndedByRequest {
		grace = 0
	}
	c.fate.ask(outcome, grace)
	return reply, nil
}

// closing finds the channel to close, or remembers that it is not to be opened.
func (t *table) closing(o wire.CloseOrder) (*channel, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.open[o.Channel]; c != nil {
		switch {
		case c.order.Tenant != o.Tenant || c.order.Lease != o.Lease:
			return nil, errOtherChannel()
		case older(o.Epoch, c.order.Epoch):
			return nil, t.epochs.check(o.Lease, o.Epoch)
		}
		return c, nil
	}
	if _, known := t.ended.get(o.Channel); !known {
		t.ended.put(o.Channel, endedChannel{tenant: o.Tenant, lease: o.Lease})
	}
	return nil, nil
}
