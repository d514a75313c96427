package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// renewStored is how old a renewal on record may become before it is written
// again; in between it is kept in memory.
const renewStored = 5 * time.Minute

// leases grants leases and ends them.
type leases struct {
	store  *store
	fleet  *fleet
	orders *orders
	limits Limits
	log    zerolog.Logger

	one     locks // by key: one acquire of an idempotency key at a time
	mu      sync.Mutex
	renewed map[string]time.Time // by key; later than what the record says
	// unwritten is when the last renewal of a worker could not be written.
	unwritten time.Time
}

func leaseKey(tenant, id string) string { return tenant + "." + id }

// find returns a tenant's lease. NOT_FOUND is the same for unknown and foreign.
func (l *leases) find(ctx context.Context, tenant, id string) (entry[lease.Record], error) {
	if err := wire.CheckLeaseID(id); err != nil {
		return entry[lease.Record]{}, err
	}
	key := leaseKey(tenant, id)
	e, ok := l.store.leases.peek(key)
	if !ok {
		var err error
		if e, ok, err = l.store.leases.load(ctx, key); err != nil {
			return e, err
		}
	}
	if !ok {
		return e, lease.NotFound()
	}
	return e, nil
}

// view shows a lease with the renewals that are not on record.
func (l *leases) view(r lease.Record) wire.Lease {
	l.mu.Lock()
	at := l.renewed[leaseKey(r.Tenant, r.ID)]
	l.mu.Unlock()
	if at.After(r.Times.Renewed) {
		r.Times.Renewed = at
	}
	return r.View()
}

// changed follows every new version of a record.
func (l *leases) changed(key string, old, r lease.Record) {
	if r.State.Ended() {
		l.mu.Lock()
		delete(l.renewed, key)
		l.mu.Unlock()
	}
	l.fleet.with(func(t *registry.Table, _ time.Time) {
		if old.Place.Worker != "" && (old.Place.Worker != r.Place.Worker || r.State.Ended()) {
			t.Unreserve(old.Place.Worker, r.ID)
		}
		if r.Place.Worker != "" && !r.State.Ended() {
			t.Adopt(leaseTarget(r), r.ID)
		}
	})
}

// adopted lists the leases on record for a worker.
func (l *leases) adopted(worker string) []string {
	var ids []string
	for _, e := range l.store.leases.all(func(_ string, r lease.Record) bool { return r.Place.Worker == worker && !r.State.Ended() }) {
		ids = append(ids, e.rec.ID)
	}
	return ids
}

// get is api get.
func (l *leases) get(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.LeaseRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	e, err := l.find(ctx, to.Tenant, req.Lease)
	if err != nil {
		return nil, err
	}
	return wire.LeaseReply{Lease: l.view(e.rec)}, nil
}

// renew is api renew.
func (l *leases) renew(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.LeaseRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	r, err := l.extend(ctx, to.Tenant, req.Lease, req.Epoch, nil)
	if err != nil {
		return nil, err
	}
	return wire.LeaseReply{Lease: l.view(r)}, nil
}

// renewBusy is wr renew.
func (l *leases) renewBusy(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.RenewRequest
	if err := wire.DecodeStrict(body, wire.MaxOpenBody, &req); err != nil {
		return nil, err
	}
	at := registry.Target{Worker: to.Worker, Instance: req.Instance}
	l.fleet.heard(at)
	var reply wire.RenewReply
	for _, x := range req.Leases {
		_, err := l.extend(ctx, x.Tenant, x.Lease, &x.Epoch, &at)
		switch code := wire.CodeOf(err); {
		case err == nil:
		case code == "" || code == wire.CodeUnavailable:
			return nil, err
		default:
			reply.Refused = append(reply.Refused, wire.RefusedLease{Lease: x.Lease, Code: code})
		}
	}
	return reply, nil
}

// extend renews one lease, for its holder or, with by set, for the worker that
// has it.
func (l *leases) extend(ctx context.Context, tenant, id string, epoch *wire.Epoch, by *registry.Target) (lease.Record, error) {
	if err := wire.CheckTenant(tenant); err != nil {
		return lease.Record{}, err
	}
	e, err := l.find(ctx, tenant, id)
	if err != nil {
		return e.rec, err
	}
	if by != nil && (e.rec.Place.Worker != by.Worker || e.rec.Place.Instance != by.Instance) {
		return e.rec, lease.NotFound()
	}
	now := time.Now()
	next, err := e.rec.Renew(now, epoch)
	if err != nil {
		// The table may be behind the store, which has the word.
		fresh, ok, loadErr := l.store.leases.load(ctx, leaseKey(tenant, id))
		if loadErr != nil || !ok || fresh.rev == e.rev {
			return e.rec, err
		}
		if next, err = fresh.rec.Renew(now, epoch); err != nil {
			return fresh.rec, err
		}
		e = fresh
	}
	key := leaseKey(tenant, id)
	l.mu.Lock()
	l.renewed[key] = now
	l.mu.Unlock()
	if now.Sub(e.rec.Times.Renewed) < renewStored {
		return next, nil
	}
	if by != nil && l.away(now) {
		return next, nil
	}
	out, found, err := l.store.leases.modify(ctx, key, func(r lease.Record) (lease.Record, error) { return r.Renew(now, epoch) })
	switch {
	case by != nil && wire.CodeOf(err) == wire.CodeUnavailable:
		// What runs goes on: without the store nobody can end the lease on record
		// either, and the worker itself says that it is in use.
		l.mu.Lock()
		l.unwritten = now
		l.mu.Unlock()
		return next, nil
	case err == nil && !found:
		return e.rec, lease.NotFound()
	}
	return out.rec, err
}

// storeAway is for how long renewals of workers are kept in memory only after
// one could not be written: each try would hold up the rest of its batch.
const storeAway = 10 * time.Second

func (l *leases) away(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.unwritten) < storeAway
}

// release is api release. The record is written first; a sandbox whose worker
// does not confirm is torn down later.
func (l *leases) release(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.LeaseRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	if err := wire.CheckLeaseID(req.Lease); err != nil {
		return nil, err
	}
	begun := false
	e, found, err := l.store.leases.modify(ctx, leaseKey(to.Tenant, req.Lease), func(r lease.Record) (lease.Record, error) {
		next, changed, err := r.Release(time.Now(), req.Epoch, "by its holder")
		if begun = changed; err == nil && !changed {
			err = errUnchanged
		}
		return next, err
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, lease.NotFound()
	}
	if begun && e.rec.State == lease.PendingCleanup {
		e = l.teardown(ctx, e, wire.LeaseReleased)
	}
	return wire.LeaseReply{Lease: l.view(e.rec)}, nil
}

// teardown tells the worker to end a lease that is pending_cleanup on record,
// and records how that went. It returns the record as it is then.
func (l *leases) teardown(ctx context.Context, e entry[lease.Record], outcome wire.OutcomeKind) entry[lease.Record] {
	r := e.rec
	order := wire.ReleaseOrder{
		OrderHead: head(r.Tenant, r.Place.Worker, l.fleet.instance(r.Place.Worker, r.Place.Instance), r.ID, r.Epoch),
		Outcome:   outcome,
	}
	var reply wire.ReleaseReply
	err := l.orders.send(ctx, r.Place.Worker, subjects.WKRelease, order, nil, &reply)
	// A worker that does not know the lease has nothing left of it.
	code := wire.CodeOf(err)
	done := err == nil || code == wire.CodeNotFound || code == wire.CodeSandboxNotCached
	if !done {
		l.log.Warn().Err(err).Str("lease", r.ID).Str("worker", r.Place.Worker).Msg("the sandbox is not torn down yet; it is tried again")
	}
	out, _, err := l.store.leases.modify(context.WithoutCancel(ctx), leaseKey(r.Tenant, r.ID), func(r lease.Record) (lease.Record, error) {
		now := time.Now()
		switch {
		case r.State != lease.PendingCleanup:
			return r, errUnchanged
		case done:
			return r.TornDown(now)
		}
		return r.TeardownFailed(now, now.Add(teardownAgain))
	})
	if err != nil {
		l.log.Warn().Err(err).Str("lease", r.ID).Msg("the end of a lease is not on record yet")
		return e
	}
	return out
}

// teardownAgain is the pause between two tries to tear a sandbox down.
const teardownAgain = 5 * time.Second
