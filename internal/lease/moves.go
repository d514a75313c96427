package lease

import (
	"slices"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// CompareEpoch orders two epochs of one lease: negative if a is older, zero if
// equal, positive if newer. Epochs of different incarnations have no order; ok is false.
func CompareEpoch(a, b wire.Epoch) (order int, ok bool) {
	switch {
	case a.Incarnation != b.Incarnation:
		return 0, false
	case a.N < b.N:
		return -1, true
	case a.N > b.N:
		return 1, true
	}
	return 0, true
}

// NotFound is the answer for a lease that is not there and for another
// tenant's: they cannot be told apart.
func NotFound() *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "there is no such lease; list your leases or acquire one")
}

// CheckEpoch returns STALE_EPOCH unless e is the record's epoch.
func (r Record) CheckEpoch(e wire.Epoch) error {
	if e == r.Epoch {
		return nil
	}
	return wire.Errorf(wire.CodeStaleEpoch, "this is not the epoch under which the lease is held now; get the lease and use the epoch it shows, if it is still yours")
}

// CheckUse is gate check 3: the lease is active, no hard end has passed, the
// caller's epoch is current. Errors, in this order: LEASE_EXPIRED,
// LEASE_RELEASED (also for a failed lease), LEASE_LOST, UNAVAILABLE while
// pending, STALE_EPOCH.
func (r Record) CheckUse(now time.Time, e wire.Epoch) error {
	if err := r.checkActive(now); err != nil {
		return err
	}
	return r.CheckEpoch(e)
}

func (r Record) checkActive(now time.Time) error {
	state := r.State
	if r.Cleanup != nil && state == PendingCleanup {
		state = r.Cleanup.For
	}
	switch state {
	case Active:
		if !now.Before(r.HardEnd()) {
			return wire.Errorf(wire.CodeLeaseExpired, "the lease has reached the end of its life; acquire a new one")
		}
		return nil
	case Pending:
		return wire.Errorf(wire.CodeUnavailable, "the lease's sandbox is still being made; ask again when the lease is active")
	case Expired:
		return wire.Errorf(wire.CodeLeaseExpired, "the lease has expired%s; acquire a new one", because(r.Reason))
	case Lost:
		return wire.Errorf(wire.CodeLeaseLost, "the lease's worker is lost%s; acquire a new one", because(r.Reason))
	case Failed:
		return wire.Errorf(wire.CodeLeaseReleased, "the lease failed and was never usable%s; acquire a new one", because(r.Reason))
	}
	return wire.Errorf(wire.CodeLeaseReleased, "the lease was released%s; acquire a new one", because(r.Reason))
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// Placed gives a pending lease to a worker, the first or the next one, under
// the next epoch. Write it before the worker is asked to bind.
func (r Record) Placed(now time.Time, p Place) (Record, error) {
	n, err := r.to(now, Pending)
	if err != nil {
		return r, err
	}
	n.Epoch.N++
	n.Place = p
	return n, nil
}

// Bound makes the lease active with what the worker says it made. Nothing of
// it comes from the request. Missing metadata is no error here: the gate names
// it. Errors: WORKER_NOT_RUNNING if another instance answered,
// INVALID_ARGUMENT if the reply is not acceptable, CONFLICT if not pending.
func (r Record) Bound(now time.Time, reply wire.BindReply) (Record, error) {
	if reply.Instance != r.Place.Instance || r.Place.Instance == "" {
		return r, wire.Errorf(wire.CodeWorkerNotRunning, "another instance of the worker answered; acquire again")
	}
	if reply.State != wire.BindBound {
		return r, wire.Errorf(wire.CodeInvalidArgument, "the worker's bind reply does not say %q", wire.BindBound)
	}
	s := Sandbox{
		Driver: reply.Driver, ProviderLeaseID: reply.ProviderLeaseID,
		Metadata: reply.Metadata, Capabilities: reply.Capabilities,
	}
	if err := s.check(); err != nil {
		return r, wire.Errorf(wire.CodeInvalidArgument, "the worker's bind reply is not acceptable: %v", err)
	}
	n, err := r.to(now, Active)
	if err != nil || r.State != Pending {
		return r, notFrom(r.State, Active)
	}
	n.Sandbox = s
	n.Times.Bound, n.Times.Renewed = n.Times.Changed, n.Times.Changed
	return n, nil
}

// Renew moves the TTL's end, never back, and no hard end. A nil epoch is not
// checked. Errors as CheckUse. Times.Changed stays: a renewal is no move.
func (r Record) Renew(now time.Time, e *wire.Epoch) (Record, error) {
	if err := r.checkActive(now); err != nil {
		return r, err
	}
	if e != nil {
		if err := r.CheckEpoch(*e); err != nil {
			return r, err
		}
	}
	if now = stamp(now); now.After(r.Times.Renewed) {
		r.Times.Renewed = now
	}
	return r, nil
}

// Narrow withdraws a capability from this lease for good.
func (r Record) Narrow(now time.Time, c wire.Capability) (Record, error) {
	if r.State.Ended() {
		return r, notFrom(r.State, r.State)
	}
	if !slices.Contains(r.Narrowed, c) {
		r.Narrowed = append(slices.Clip(r.Narrowed), c)
		r.Times.Changed = stamp(now)
	}
	return r, nil
}

// Allows reports whether the lease leaves c to its holder: not withdrawn, and
// among what the worker said of this sandbox if it said anything.
func (r Record) Allows(c wire.Capability) bool {
	if slices.Contains(r.Narrowed, c) {
		return false
	}
	return len(r.Sandbox.Capabilities) == 0 || slices.Contains(r.Sandbox.Capabilities, c)
}

// Release begins the end that the holder asked for. A nil epoch is not checked.
// changed is false, without an error, if the lease has ended or is being torn
// down already. Otherwise write the record, tear the sandbox down, then write
// TornDown. A lease that was never placed is released at once.
func (r Record) Release(now time.Time, e *wire.Epoch, reason string) (rec Record, changed bool, err error) {
	if e != nil {
		if err := r.CheckEpoch(*e); err != nil {
			return r, false, err
		}
	}
	if r.State.Ended() || r.State == PendingCleanup {
		return r, false, nil
	}
	if r.State == Pending && r.Place.Worker == "" {
		n, err := r.end(now, Released, reason)
		return n, err == nil, err
	}
	n, err := r.cleanup(now, Released, reason)
	return n, err == nil, err
}

// Abandon gives a pending lease up although a sandbox may have been made: it
// has to be torn down, and the lease ends as failed.
func (r Record) Abandon(now time.Time, reason string) (Record, error) {
	if r.State != Pending {
		return r, notFrom(r.State, PendingCleanup)
	}
	return r.cleanup(now, Failed, reason)
}

// Failed gives a pending lease up of which it is certain that no sandbox exists.
func (r Record) Failed(now time.Time, reason string) (Record, error) {
	if r.State != Pending {
		return r, notFrom(r.State, Failed)
	}
	return r.end(now, Failed, reason)
}

// Expired records that the worker has carried out the expiry, or that an
// operator gave a teardown up.
func (r Record) Expired(now time.Time, reason string) (Record, error) {
	return r.end(now, Expired, reason)
}

// Lost records that the worker has been without contact for worker_lost_after,
// or is proved to be gone.
func (r Record) Lost(now time.Time, reason string) (Record, error) {
	return r.end(now, Lost, reason)
}

// TornDown ends a teardown: as what was asked for, or as expired if an earlier
// try had failed.
func (r Record) TornDown(now time.Time) (Record, error) {
	if r.State != PendingCleanup || r.Cleanup == nil {
		return r, notFrom(r.State, Released)
	}
	state := r.Cleanup.For
	if r.Cleanup.Attempts > 0 {
		state = Expired
	}
	return r.end(now, state, r.Reason)
}

// TeardownFailed counts a try that failed; the next one is not before after.
func (r Record) TeardownFailed(now, after time.Time) (Record, error) {
	if r.State != PendingCleanup || r.Cleanup == nil {
		return r, notFrom(r.State, PendingCleanup)
	}
	n, err := r.to(now, PendingCleanup)
	if err != nil {
		return r, err
	}
	n.Cleanup = &Cleanup{For: r.Cleanup.For, Attempts: r.Cleanup.Attempts + 1, After: stamp(after)}
	return n, nil
}

func (r Record) cleanup(now time.Time, goal State, reason string) (Record, error) {
	n, err := r.to(now, PendingCleanup)
	if err != nil {
		return r, err
	}
	n.Reason = clip(reason)
	n.Cleanup = &Cleanup{For: goal, After: n.Times.Changed}
	return n, nil
}

func (r Record) end(now time.Time, s State, reason string) (Record, error) {
	n, err := r.to(now, s)
	if err != nil {
		return r, err
	}
	n.Reason = clip(reason)
	n.Times.Ended = n.Times.Changed
	return n, nil
}

// to is the one place where a state changes.
func (r Record) to(now time.Time, s State) (Record, error) {
	if !r.State.CanBecome(s) {
		return r, notFrom(r.State, s)
	}
	r.State = s
	r.Times.Changed = stamp(now)
	return r, nil
}

func notFrom(from, to State) error {
	return wire.Errorf(wire.CodeConflict, "a lease that is %s does not become %s; get the lease and decide again", from, to)
}

// stamp drops what a stored time does not keep.
func stamp(t time.Time) time.Time { return t.UTC().Round(0) }
