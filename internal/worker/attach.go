package worker

import (
	"context"
	"strconv"

	"github.com/weft-fabric/weft/internal/wire"
)

// attach is wk attach: a new client holds the channel from now on. The reply to
// one for a channel that is forgotten has its outcome and no attach number; a
// channel that has ended but is not taken yet can be attached to.
func (w *Worker) attach(ctx context.Context, o wire.AttachOrder) (wire.AttachedReply, error) {
	reply := wire.AttachedReply{Channel: o.Channel, Instance: w.instance}
	if err := checkAttach(o); err != nil {
		return reply, err
	}
	c, ended, err := w.table.attachable(o)
	if c == nil || err != nil {
		reply.Outcome = ended
		return reply, err
	}
	select {
	case <-c.opened:
	case <-ctx.Done():
		return reply, errDraining()
	}
	if c.err != nil {
		return reply, c.err
	}
	reply.Up, reply.Down, err = c.end.Attach(o.Attach, wire.KeyUp(c.order.Secret, o.Attach), o.From, o.Credit)
	switch wire.CodeOf(err) {
	case "":
		c.audience.back()
		reply.Attach = o.Attach
		c.log.Info().Uint32("attach", o.Attach).Msg("another client has attached")
		return reply, nil
	case wire.CodeConflict:
		return reply, wire.AsError(err).With("attach", strconv.FormatUint(uint64(c.end.AttachNumber()), 10))
	case wire.CodeChannelEnded:
		if reply.Outcome = w.table.outcome(c); reply.Outcome != nil {
			return reply, nil // forgotten meanwhile
		}
	}
	return reply, err
}

func checkAttach(o wire.AttachOrder) error {
	if err := checkLeaseHead(o.OrderHead); err != nil {
		return err
	}
	if err := wire.CheckChannelID(o.Channel); err != nil {
		return err
	}
	return checkCredit(o.Credit)
}

// checkCredit refuses a first credit that has nothing of something: nothing would
// be sent that an answer could follow.
func checkCredit(c wire.DownCredit) error {
	if c.Stdout == 0 || c.Stderr == 0 || c.FrameLimit == 0 {
		return wire.Errorf(wire.CodeInvalidArgument, "the first credit of a stream is 0; grant at least a byte and a frame")
	}
	return nil
}

// attachable finds the channel of an order, or the outcome of one that is
// forgotten.
func (t *table) attachable(o wire.AttachOrder) (*channel, *wire.Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.epochs.check(o.Lease, o.Epoch); err != nil {
		return nil, nil, err
	}
	c := t.open[o.Channel]
	if c == nil {
		if e, ok := t.ended.get(o.Channel); ok && e.tenant == o.Tenant && e.lease == o.Lease && e.outcome.Kind != "" {
			return nil, &e.outcome, nil
		}
		return nil, nil, wire.Errorf(wire.CodeChannelEnded, "the channel is not open on this worker")
	}
	switch {
	case c.order.Tenant != o.Tenant || c.order.Lease != o.Lease || c.order.Epoch != o.Epoch:
		return nil, nil, wire.Errorf(wire.CodeChannelEnded, "the channel is not open on this worker")
	case c.order.Mode == wire.ModeExecute:
		return nil, nil, wire.Errorf(wire.CodeInvalidArgument, "a one-shot command cannot be attached to")
	}
	return c, nil, nil
}
