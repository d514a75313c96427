package coordinator

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

const (
	// attachTries bounds the numbers that one request uses up while the worker
	// gives others away on the channel.
	attachTries = 4
	// openingWait is how long an attach waits for an open to be recorded.
	openingWait = time.Second
)

// attach is api attach: the channel goes to the caller under the next number.
func (c *channels) attach(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	e, req, err := c.enter(ctx, to.Tenant, body, func(r wire.AttachRequest) error { return checkCredit(r.Credit) })
	switch {
	case errors.Is(err, errOver):
		return e.rec.Reading(), nil
	case err != nil:
		return nil, err
	}
	return c.take(ctx, e, req)
}

// observe is api observe: the caller may read along and holds nothing.
func (c *channels) observe(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	e, _, err := c.enter(ctx, to.Tenant, body, func(wire.AttachRequest) error { return nil })
	if err != nil && !errors.Is(err, errOver) {
		return nil, err
	}
	return e.rec.Reading(), nil
}

// errOver means that the gate refuses, and that the channel has ended: there is
// nothing to hold, but what it left may be read.
var errOver = errors.New("coordinator: the channel is over")

// enter is the gate for somebody who comes to a channel that is there. The lease
// of an ended channel has mostly ended with it, so of that one only checks 1 and
// 2 are asked.
func (c *channels) enter(ctx context.Context, tenant string, body []byte, check func(wire.AttachRequest) error) (e entry[channel.Record], req wire.AttachRequest, err error) {
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return e, req, err
	}
	in := c.facts(ctx, tenant, req.Lease, req.Epoch)
	in.Arguments = func() error {
		if err := wire.CheckLeaseID(req.Lease); err != nil {
			return err
		}
		if err := wire.CheckChannelID(req.Channel); err != nil {
			return err
		}
		return check(req)
	}
	in.Quota = func(lease.Record) error { return nil } // the channel has its place
	_, refused := gate.Check(in)
	switch wire.CodeOf(refused) {
	case wire.CodeInvalidArgument, wire.CodeNotFound, wire.CodeUnavailable:
		return e, req, refused
	}
	e, err = c.find(ctx, tenant, req.Lease, req.Channel)
	if refused == nil {
		if err == nil {
			err = e.rec.CheckShared()
		}
		return e, req, err
	}
	if err == nil && e.rec.State != channel.Ended {
		// Perhaps only the table is behind.
		e, _, err = c.store.channels.load(ctx, keyOf(e.rec))
	}
	if err == nil && e.rec.State == channel.Ended && e.rec.CheckShared() == nil {
		return e, req, errOver
	}
	return e, req, c.unknownWorker(ctx, tenant, req.Lease, refused)
}

// take writes the next attach number and then tells the worker. A number that
// the worker has passed already, because clients resumed there without a
// coordinator, is followed by a higher one; a number that was passed on record
// belongs to somebody who came later and has the channel.
func (c *channels) take(ctx context.Context, e entry[channel.Record], req wire.AttachRequest) (any, error) {
	e = c.afterOpening(ctx, e)
	mine, held := uint32(0), uint32(0)
	for range attachTries {
		out, found, err := c.store.channels.modify(ctx, keyOf(e.rec), func(r channel.Record) (channel.Record, error) {
			switch {
			case over(r):
				return r, errUnchanged
			case mine != 0 && r.Attach != mine:
				return r, gate.AttachOvertaken()
			}
			return r.WithAttach(held)
		})
		switch {
		case err != nil:
			return nil, err
		case !found:
			return nil, channel.NotFound()
		case over(out.rec):
			return out.rec.Reading(), nil
		}
		e, mine = out, out.rec.Attach
		reply, err := c.tellAttach(ctx, e.rec, req)
		if err == nil {
			return c.attached(e.rec, reply), nil
		}
		n, passed := newest(err)
		if !passed || n < mine {
			return c.notAttached(ctx, e, err)
		}
		held = n
	}
	return nil, gate.AttachOvertaken()
}

// over reports whether nobody can have anything more of the channel than its log
// has: a worker that reported the end itself may keep the last bytes for a reader
// for some time.
func over(r channel.Record) bool {
	return r.End != nil && (r.End.By != channel.ByWorker || time.Since(r.End.At) > purgeAfter)
}

// newest reads the attach number that a worker's CONFLICT names.
func newest(err error) (n uint32, ok bool) {
	if wire.CodeOf(err) != wire.CodeConflict {
		return 0, false
	}
	v, parseErr := strconv.ParseUint(wire.AsError(err).Details[detailAttach], 10, 32)
	return uint32(v), parseErr == nil
}

// afterOpening gives an open that is just being recorded the time to be. A
// coordinator that died over an open leaves it unrecorded: the worker has the
// word then.
func (c *channels) afterOpening(ctx context.Context, e entry[channel.Record]) entry[channel.Record] {
	if e.rec.State != channel.Opening {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, openingWait)
	defer cancel()
	if now, err := c.store.channels.wait(ctx, keyOf(e.rec), func(r channel.Record) bool { return r.State != channel.Opening }); err == nil {
		return now
	}
	return e
}

// tellAttach makes the record's attach the holder at the worker.
func (c *channels) tellAttach(ctx context.Context, r channel.Record, req wire.AttachRequest) (reply wire.AttachedReply, err error) {
	order := wire.AttachOrder{
		OrderHead: head(r.Tenant, r.Home.Worker, r.Home.Instance, r.Lease, r.Home.Epoch),
		Channel:   r.ID, Attach: r.Attach, Credit: req.Credit, From: req.From,
	}
	if err := c.orders.send(ctx, r.Home.Worker, subjects.WKAttach, order, nil, &reply); err != nil {
		return reply, err
	}
	switch {
	case reply.Instance != r.Home.Instance:
		return reply, gate.WorkerNotRunning()
	case reply.Channel != r.ID, reply.Outcome == nil && reply.Attach != r.Attach, reply.Outcome != nil && !knownOutcome(*reply.Outcome):
		return reply, errReply
	}
	c.fleet.heard(channelTarget(r))
	return reply, nil
}

// attached is the answer of a worker as the client gets it. A channel that has
// ended there is nobody's; its last position says how much the log should have.
func (c *channels) attached(r channel.Record, reply wire.AttachedReply) wire.AttachReply {
	if reply.Outcome == nil {
		return r.Held(reply.Up, reply.Down)
	}
	out := r.Reading()
	out.Up, out.Down = reply.Up, reply.Down
	if out.Outcome == nil {
		o := clean(*reply.Outcome)
		out.Outcome = &o
	}
	return out
}

// notAttached is what the client is told when the worker did not give the
// channel over. What has ended may be read all the same.
func (c *channels) notAttached(ctx context.Context, e entry[channel.Record], cause error) (any, error) {
	if e.rec.State != channel.Ended {
		if now, ok, err := c.store.channels.load(ctx, keyOf(e.rec)); err == nil && ok {
			e = now
		}
	}
	if e.rec.State == channel.Ended {
		return e.rec.Reading(), nil
	}
	answer := attachRefusal(cause)
	c.log.Info().Str("channel", e.rec.ID.String()).Str("worker", e.rec.Home.Worker).Str("code", string(answer.Code)).AnErr("cause", cause).Msg("attach refused")
	return nil, answer
}

func attachRefusal(cause error) *wire.Error {
	switch {
	case errors.Is(cause, errNobody):
		return gate.WorkerNotRunning()
	case errors.Is(cause, errNoReply):
		return gate.AttachTimedOut()
	case errors.Is(cause, errReply):
		return gate.AttachFailed("its answer cannot be read")
	}
	switch code := wire.CodeOf(cause); code {
	case wire.CodeWorkerNotRunning, wire.CodeWorkerDraining:
		return refusalByCode(code)
	case wire.CodeNotFound, wire.CodeChannelEnded:
		return gate.NotThere()
	case wire.CodeInvalidArgument, wire.CodeConflict, wire.CodeStaleEpoch, wire.CodeUnsupportedVersion,
		wire.CodeLeaseExpired, wire.CodeLeaseReleased, wire.CodeLeaseLost:
		return wire.AsError(cause)
	}
	return gate.AttachFailed("it refused the order")
}
