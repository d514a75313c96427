package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// bindTry bounds one bind request; a worker that needs longer answers
// "provisioning" and is asked again.
const bindTry = 10 * time.Second

// acquire is api acquire.
func (l *leases) acquire(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.AcquireRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	rec, err := lease.New(time.Now(), lease.Request{Tenant: to.Tenant, Incarnation: l.store.incarnation, AcquireRequest: req})
	if err != nil {
		return nil, err
	}
	if life := rec.Times.Created.Add(l.limits.LeaseLife); rec.Times.LifeEnds.After(life) {
		rec.Times.LifeEnds = life
	}
	release, err := l.one.take(ctx, leaseKey(rec.Tenant, rec.ID))
	if err != nil {
		return nil, tooLate("the lease is still being made; acquire again with the same idempotency key to wait on")
	}
	defer release()
	got, err := l.grant(ctx, rec, req)
	if err != nil {
		return nil, err
	}
	return wire.LeaseReply{Lease: l.view(got)}, nil
}

// grant returns the lease that rec describes, made now or earlier.
func (l *leases) grant(ctx context.Context, rec lease.Record, req wire.AcquireRequest) (lease.Record, error) {
	key := leaseKey(rec.Tenant, rec.ID)
	if e, ok := l.store.leases.peek(key); ok {
		return l.existing(ctx, e, req)
	}
	placement := l.fleet.place(registry.Query{Plugin: req.Plugin, Provider: req.Provider, Labels: req.Labels})
	for i, c := range placement.Candidates {
		if !l.reserve(c, rec.ID) {
			continue
		}
		e, err := l.begin(ctx, rec, c)
		if err == nil {
			return l.bind(ctx, e, placement.Candidates[i:])
		}
		l.unreserve(c, rec.ID)
		if !errors.Is(err, errFenced) {
			return rec, err
		}
		break
	}
	// Nobody is free, perhaps because an earlier copy of this request has the slot.
	e, ok, err := l.store.leases.load(ctx, key)
	switch {
	case err != nil:
		return rec, err
	case ok:
		return l.existing(ctx, e, req)
	case len(placement.Candidates) > 0:
		// All were taken between choosing and reserving; the table says why now.
		placement = l.fleet.place(registry.Query{Plugin: req.Plugin, Provider: req.Provider, Labels: req.Labels})
	}
	return rec, placement.Err()
}

// begin writes the pending record that names the worker about to be asked.
func (l *leases) begin(ctx context.Context, rec lease.Record, c registry.Candidate) (e entry[lease.Record], err error) {
	held := l.store.leases.count(func(_ string, r lease.Record) bool { return r.Tenant == rec.Tenant && !r.State.Ended() })
	if held >= l.limits.LeasesPerTenant {
		return e, wire.Errorf(wire.CodeQuotaExceeded, "the tenant holds %d leases, its limit; release one first", held)
	}
	if rec, err = rec.Placed(time.Now(), placeOf(c)); err != nil {
		return e, err
	}
	return l.store.leases.create(ctx, leaseKey(rec.Tenant, rec.ID), rec)
}

func placeOf(c registry.Candidate) lease.Place {
	return lease.Place{Worker: c.Worker, Instance: c.Instance, Route: c.Route, Provider: c.Provider}
}

func (l *leases) reserve(c registry.Candidate, id string) (ok bool) {
	l.fleet.with(func(t *registry.Table, _ time.Time) { ok = t.Reserve(c.Target, id) })
	return ok
}

func (l *leases) unreserve(c registry.Candidate, id string) {
	l.fleet.with(func(t *registry.Table, _ time.Time) { t.Unreserve(c.Worker, id) })
}

// existing answers a repeated acquire from the record of the first.
func (l *leases) existing(ctx context.Context, e entry[lease.Record], req wire.AcquireRequest) (lease.Record, error) {
	if err := e.rec.Matches(req); err != nil {
		return e.rec, err
	}
	e, err := l.store.leases.wait(ctx, leaseKey(e.rec.Tenant, e.rec.ID), func(r lease.Record) bool { return r.State != lease.Pending })
	if wire.CodeOf(err) != "" {
		return e.rec, err
	}
	if err != nil {
		return e.rec, tooLate("the lease is still being made; acquire again with the same idempotency key to wait on")
	}
	if e.rec.State == lease.Failed {
		return e.rec, wire.Errorf(wire.CodeNoWorker, "the lease failed (%s); acquire with a new idempotency key", e.rec.Reason)
	}
	return e.rec, e.rec.CheckUse(time.Now(), e.rec.Epoch)
}

// bind asks the candidates in turn, the first of which has the record already.
// A clear refusal moves on under the next epoch; when a sandbox may have been
// made the lease is given up, since no record would know of it.
func (l *leases) bind(ctx context.Context, e entry[lease.Record], cands []registry.Candidate) (lease.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, l.limits.Bind)
	defer cancel()
	reason := ""
	for i, c := range cands {
		if i > 0 {
			if !l.reserve(c, e.rec.ID) {
				continue
			}
			next, err := e.rec.Placed(time.Now(), placeOf(c))
			if err == nil {
				e, err = l.store.leases.update(ctx, leaseKey(e.rec.Tenant, e.rec.ID), entry[lease.Record]{next, e.rev})
			}
			if err != nil {
				l.unreserve(c, next.ID)
				return next, l.overtaken(err)
			}
		}
		reply, sure, err := l.bindOn(ctx, e.rec, c)
		if err == nil {
			return l.activate(ctx, e, reply)
		}
		l.log.Info().Err(err).Str("lease", e.rec.ID).Str("worker", c.Worker).Bool("sure", sure).Msg("bind refused")
		if !sure {
			return e.rec, l.abandon(ctx, e, err)
		}
		l.unreserve(c, e.rec.ID)
		reason = refusal(err)
	}
	if reason == "" {
		reason = "every slot was taken meanwhile"
	}
	_, _, err := l.store.leases.modify(context.WithoutCancel(ctx), leaseKey(e.rec.Tenant, e.rec.ID), func(r lease.Record) (lease.Record, error) {
		return r.Failed(time.Now(), reason)
	})
	if err != nil {
		l.log.Warn().Err(err).Str("lease", e.rec.ID).Msg("a failed lease is not on record as such")
	}
	return e.rec, wire.Errorf(wire.CodeNoWorker, "no worker took the lease (%s); try again with a new idempotency key", reason)
}

// refusal is a worker's no as a tenant may read it.
func refusal(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return fmt.Sprintf("slots or sandbox refused: %s", e.Code)
	}
	return "the worker is not there"
}

// bindOn asks one worker until the sandbox is there. sure says that a failure
// left nothing behind.
func (l *leases) bindOn(ctx context.Context, r lease.Record, c registry.Candidate) (reply wire.BindReply, sure bool, err error) {
	order := wire.BindOrder{
		OrderHead:   head(r.Tenant, c.Worker, c.Instance, r.ID, r.Epoch),
		Environment: r.Environment, Provider: c.Provider, TTLMS: r.TTLMS,
	}
	sure = true
	for wait := 20 * time.Millisecond; ; wait = min(wait*3/2, time.Second) {
		try, cancel := context.WithTimeout(ctx, bindTry)
		reply = wire.BindReply{}
		err = l.orders.send(try, c.Worker, subjects.WKBind, order, nil, &reply)
		cancel()
		switch {
		case errors.Is(err, errNoReply), errors.Is(err, errReply):
			return reply, false, err
		case err != nil:
			return reply, sure, err
		case reply.State != wire.BindProvisioning || reply.Instance != c.Instance:
			return reply, false, nil
		}
		sure = false // the worker has begun
		if !pause(ctx, wait) {
			return reply, false, errNoReply
		}
	}
}

// activate records what the worker made.
func (l *leases) activate(ctx context.Context, e entry[lease.Record], reply wire.BindReply) (lease.Record, error) {
	next, err := e.rec.Bound(time.Now(), reply)
	if err != nil {
		return e.rec, l.abandon(ctx, e, err)
	}
	out, err := l.store.leases.update(ctx, leaseKey(next.Tenant, next.ID), entry[lease.Record]{next, e.rev})
	if err != nil {
		return next, l.overtaken(err)
	}
	return out.rec, nil
}

// overtaken is what the acquirer is told when the pending record was changed by
// somebody else (released, given up) or cannot be written. What was begun is
// torn down from the record.
func (l *leases) overtaken(err error) error {
	if errors.Is(err, errFenced) {
		return wire.Errorf(wire.CodeConflict, "the lease was ended while it was being made; acquire with a new idempotency key")
	}
	return err
}

// abandon gives up a lease for which a sandbox may exist and begins its teardown.
func (l *leases) abandon(ctx context.Context, e entry[lease.Record], cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	out, found, err := l.store.leases.modify(ctx, leaseKey(e.rec.Tenant, e.rec.ID), func(r lease.Record) (lease.Record, error) {
		return r.Abandon(time.Now(), "the worker did not make the sandbox in time")
	})
	if err == nil && found {
		l.teardown(ctx, out, wire.LeaseReleased)
	}
	l.log.Warn().Err(cause).Str("lease", e.rec.ID).Str("worker", e.rec.Place.Worker).Msg("a lease was given up while its sandbox was being made")
	return tooLate("the worker did not make the sandbox in time; acquire with a new idempotency key")
}

func tooLate(text string) error { return wire.Errorf(wire.CodeDeadlineExceeded, "%s", text) }
