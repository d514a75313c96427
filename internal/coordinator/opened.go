package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// start is gate checks 10 to 12: one request to the worker. The record is there;
// whatever goes wrong ends it.
func (c *channels) start(ctx context.Context, e entry[channel.Record], l lease.Record, o opening) (any, error) {
	r := e.rec
	order := wire.OpenOrder{
		OrderHead: head(r.Tenant, r.Home.Worker, r.Home.Instance, r.Lease, r.Home.Epoch),
		Channel:   r.ID, Mode: r.Mode, Provider: l.Place.Provider,
		Credit: o.req.Credit, Limits: wire.ChannelLimits{Channels: c.limits.ChannelsPerLease},
		Secret: r.Secret, BodySHA256: r.BodyHash,
	}
	if o.mode == wire.ModeDuplex {
		order.ProviderLeaseID = l.Sandbox.ProviderLeaseID
	}
	var reply wire.OpenedReply
	err := c.orders.send(ctx, r.Home.Worker, subjects.WKOpen, order, o.req.Body, &reply)
	if err == nil {
		err = checkOpened(reply, r)
	}
	if err != nil {
		return nil, c.refuse(ctx, r, err)
	}
	c.fleet.heard(registry.Target{Worker: r.Home.Worker, Instance: r.Home.Instance})
	opened, err := r.WithOpened(time.Now(), reply.Credit)
	if err != nil {
		return nil, err
	}
	answer := opened.Reply()
	answer.Outcome = reply.Outcome
	// Nobody need wait for this write: without it the record still says "opening"
	// and ends in the same ways. A command that is done at once saves it.
	c.afterwards("record an open channel", func(ctx context.Context) error {
		pause(ctx, openRecorded)
		_, _, err := c.store.channels.modify(ctx, o.key, func(r channel.Record) (channel.Record, error) {
			return openedOrEnded(r, reply)
		})
		return err
	})
	return answer, nil
}

// openRecorded is how long after its opening a channel is recorded as open.
const openRecorded = 25 * time.Millisecond

// openedOrEnded is the record after the worker's reply. A command that could
// not be started has ended; any other end is the worker's to report, with totals.
func openedOrEnded(r channel.Record, reply wire.OpenedReply) (channel.Record, error) {
	if r.State == channel.Ended {
		return r, errUnchanged
	}
	next, err := r.WithOpened(time.Now(), reply.Credit)
	if err == nil && reply.Outcome != nil && reply.Outcome.Kind == wire.StartFailed {
		next, _ = next.WithEnd(time.Now(), channel.ByWorker, clean(*reply.Outcome), &wire.Totals{})
	}
	return next, err
}

// errStarted wraps a refusal after which a process may be running.
type errStarted struct{ refusal *wire.Error }

func (e errStarted) Error() string { return e.refusal.Error() }

func checkOpened(reply wire.OpenedReply, r channel.Record) error {
	switch {
	case reply.Channel != r.ID:
		return errStarted{gate.OpenFailed("its answer names another channel")}
	case reply.Instance == "":
		return errStarted{gate.OpenFailed("its answer names no instance")}
	case reply.Instance != r.Home.Instance:
		return errStarted{gate.WorkerNotRunning()}
	case reply.Outcome != nil && !knownOutcome(*reply.Outcome):
		return errStarted{gate.OpenFailed("its answer has an outcome that is none")}
	}
	return nil
}

// refuse ends the record of a channel that the worker did not open and returns
// what the client is told. The record's end is written before the answer, so
// that the slot is free by then.
func (c *channels) refuse(ctx context.Context, r channel.Record, cause error) error {
	answer, started := verdict(r, cause, c.limits)
	outcome := wire.StartFailedFor(string(answer.Code))
	if started {
		outcome = wire.Outcome{Kind: wire.Unknown}
		c.afterwards("stop what a failed open may have started", func(ctx context.Context) error {
			return c.tellClose(ctx, r, wire.Unknown, "the open failed")
		})
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := c.end(ctx, r, outcome); err != nil {
		c.afterwards("record a refused channel", func(ctx context.Context) error { return c.end(ctx, r, outcome) })
	}
	c.log.Info().Str("channel", r.ID.String()).Str("worker", r.Home.Worker).Str("code", string(answer.Code)).AnErr("cause", cause).Msg("open refused")
	return answer
}

func (c *channels) end(ctx context.Context, r channel.Record, o wire.Outcome) error {
	_, _, err := c.store.channels.modify(ctx, keyOf(r), func(r channel.Record) (channel.Record, error) {
		next, changed := r.WithEnd(time.Now(), channel.ByCoordinator, o, nil)
		if !changed {
			return r, errUnchanged
		}
		return next, nil
	})
	return err
}

// verdict is the gate's word on why an open order failed, and whether a process
// may have been started all the same.
func verdict(r channel.Record, cause error, limits Limits) (answer *wire.Error, started bool) {
	if s, ok := errors.AsType[errStarted](cause); ok {
		return s.refusal, true
	}
	switch {
	case errors.Is(cause, errNobody):
		return gate.WorkerNotRunning(), false
	case errors.Is(cause, errNoReply):
		return gate.OpenTimedOut(), true
	case errors.Is(cause, errReply):
		return gate.OpenFailed("its answer cannot be read"), true
	}
	switch code := wire.CodeOf(cause); code {
	case wire.CodeRouteBusy:
		return gate.RouteBusy(limits.ChannelsPerLease), false
	case wire.CodeInvalidArgument, wire.CodePayloadTooLarge, wire.CodeQuotaExceeded, wire.CodeStaleEpoch,
		wire.CodeLeaseExpired, wire.CodeLeaseReleased, wire.CodeLeaseLost:
		return wire.AsError(cause), false
	default:
		return refusalByCode(code), false
	}
}

// refusalByCode is the gate's text for a refusal of checks 10 to 12.
func refusalByCode(code wire.Code) *wire.Error {
	switch code {
	case wire.CodeWorkerNotRunning:
		return gate.WorkerNotRunning()
	case wire.CodeWorkerDraining:
		return gate.WorkerDraining()
	case wire.CodeSandboxNotCached, wire.CodeNotFound:
		return gate.SandboxNotCached()
	}
	return gate.OpenFailed("it refused the order")
}

// refusalOnRecord is what a repeat of a refused open is told: the same again.
func refusalOnRecord(r channel.Record) error {
	if r.End == nil || r.End.By != channel.ByCoordinator {
		return nil
	}
	switch o := r.End.Outcome; {
	case o.Kind == wire.StartFailed:
		return refusalByCode(wire.Code(o.Reason))
	case o.Kind == wire.Unknown && r.Opened.IsZero():
		return gate.OpenFailed("it did not answer the open as it must")
	}
	return nil
}

// tellClose asks the worker to end a channel.
func (c *channels) tellClose(ctx context.Context, r channel.Record, o wire.OutcomeKind, reason string) error {
	order := wire.CloseOrder{
		OrderHead: head(r.Tenant, r.Home.Worker, r.Home.Instance, r.Lease, r.Home.Epoch),
		Channel:   r.ID, Outcome: o, Reason: reason,
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var reply wire.ProbeReply
	return c.orders.send(ctx, r.Home.Worker, subjects.WKClose, order, nil, &reply)
}

// afterTimeout bounds what is left to do after an answer.
const afterTimeout = 10 * time.Second

// afterwards runs job beside the requests, again until it succeeds or nobody is
// there to hear it. It outlives the request that it belongs to.
func (c *channels) afterwards(what string, job func(context.Context) error) {
	run := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, afterTimeout)
		defer cancel()
		var err error
		for wait := 50 * time.Millisecond; ; wait = min(3*wait, time.Second) {
			err = job(ctx)
			if err == nil || errors.Is(err, errNobody) || !pause(ctx, wait) {
				break
			}
		}
		if err != nil {
			c.log.Warn().Err(err).Str("what", what).Msg("given up")
		}
	}
	if c.later.try(run) != crewTaken {
		c.log.Warn().Str("what", what).Msg("too much is left to do; skipped")
	}
}
