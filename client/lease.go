package client

import (
	"context"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// LeaseInfo is what a tenant sees of a lease.
type LeaseInfo = wire.Lease

// Capability is what a plugin declares that its sandboxes can do.
type Capability = wire.Capability

// The capabilities that decide between Open and Execute.
const (
	CapExecute             = wire.CapExecute
	CapDuplexCommandStream = wire.CapDuplexCommandStream
)

// acquireTimeout bounds an acquire: a sandbox may take a minute to make.
const (
	acquireTimeout = 75 * time.Second
	acquireAttempt = 25 * time.Second
	// releaseTimeout covers the grace of the lease's commands.
	releaseTimeout = 25 * time.Second
)

// AcquireOptions say what a lease is wanted for. Empty Plugin and Provider
// match any.
type AcquireOptions struct {
	Environment string // what the sandbox is for; a name for people
	Plugin      string
	Provider    string
	Labels      map[string]string // that the worker must have
	TTL         time.Duration     // default 30 s; renewed in the background
	Life        time.Duration     // hard end; default 7 days
	// IdempotencyKey makes a repeated acquire return the first lease; one is made
	// if it is empty.
	IdempotencyKey string
}

func (o AcquireOptions) request() (wire.AcquireRequest, error) {
	req := wire.AcquireRequest{
		IdempotencyKey: o.IdempotencyKey, Environment: o.Environment,
		Plugin: o.Plugin, Provider: o.Provider, Labels: o.Labels,
		TTLMS: millis(o.TTL), LifeMS: millis(o.Life),
	}
	if req.IdempotencyKey == "" {
		req.IdempotencyKey = uuid.NewString()
	}
	if o.TTL < 0 || o.Life < 0 {
		return req, wire.Errorf(CodeInvalidArgument, "the TTL or the life of a lease is negative")
	}
	for k, v := range o.Labels {
		// JSON would replace other bytes in silence.
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return req, wire.Errorf(CodeInvalidArgument, "a label is not UTF-8")
		}
	}
	for _, t := range [...]struct{ what, token string }{{"plugin", o.Plugin}, {"provider", o.Provider}} {
		if t.token == "" {
			continue
		}
		if err := wire.CheckToken(t.what, t.token); err != nil {
			return req, err
		}
	}
	if o.Environment != "" {
		return req, wire.CheckName("environment", o.Environment, 256)
	}
	return req, nil
}

// millis rounds up, so that a short limit does not become none.
func millis(d time.Duration) int64 {
	if d > 0 {
		return int64((d + time.Millisecond - 1) / time.Millisecond)
	}
	return int64(d / time.Millisecond)
}

// Lease is the right to one sandbox. Its methods may be called from any goroutine.
type Lease struct {
	c    *Client
	id   string
	done chan struct{} // closed when the lease is known to have ended

	mu     sync.Mutex
	info   LeaseInfo
	keeper *job
	err    error // set before done is closed
	ended  bool
	freed  bool // released by us
}

// AcquireLease returns an active lease, waiting for its sandbox to be made, and
// keeps it until Release or Close of the client. ctx bounds the call alone.
// Errors: NO_WORKER, QUOTA_EXCEEDED, CONFLICT for a used key with other
// options, UNAVAILABLE, INVALID_ARGUMENT.
func (c *Client) AcquireLease(ctx context.Context, o AcquireOptions) (*Lease, error) {
	req, err := o.request()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	var reply wire.LeaseReply
	if err := c.exchange(ctx, subjects.API(c.opts.Tenant, subjects.APIAcquire), wire.Encode(req), acquireAttempt, &reply); err != nil {
		return nil, err
	}
	l, err := c.lease(reply.Lease)
	if err != nil {
		return nil, err
	}
	l.KeepAlive()
	return l, nil
}

// GetLease returns a lease of the tenant by its id. Nothing renews it here
// unless KeepAlive is called. Errors: NOT_FOUND, INVALID_ARGUMENT.
func (c *Client) GetLease(ctx context.Context, id string) (*Lease, error) {
	if err := wire.CheckLeaseID(id); err != nil {
		return nil, err
	}
	var reply wire.LeaseReply
	if err := c.call(ctx, subjects.APIGet, wire.LeaseRequest{Lease: id}, &reply); err != nil {
		return nil, err
	}
	return c.lease(reply.Lease)
}

// ListLeases lists the tenant's leases, recently ended ones too.
func (c *Client) ListLeases(ctx context.Context) ([]LeaseInfo, error) {
	var out []LeaseInfo
	req := wire.ListRequest{}
	for {
		var reply wire.LeaseList
		if err := c.call(ctx, subjects.APIList, req, &reply); err != nil {
			return nil, err
		}
		out = append(out, reply.Leases...)
		if reply.Next == "" || reply.Next == req.Cursor {
			return out, nil
		}
		req.Cursor = reply.Next
	}
}

func (c *Client) lease(info LeaseInfo) (*Lease, error) {
	if err := wire.CheckLeaseID(info.ID); err != nil {
		return nil, wire.Errorf(CodeInternal, "the coordinator's answer names no lease")
	}
	return &Lease{c: c, id: info.ID, info: info, done: make(chan struct{})}, nil
}

// ID is the lease's UUID.
func (l *Lease) ID() string { return l.id }

// Info is the lease as it was last told to this client.
func (l *Lease) Info() LeaseInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info
}

// Done is closed when the lease is known to have ended: released, expired, lost,
// or held under a newer epoch. Without renewals nothing here notices.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is nil until Done is closed, then why the lease ended.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Renew renews the lease now. Errors: LEASE_EXPIRED, LEASE_RELEASED,
// LEASE_LOST, STALE_EPOCH and NOT_FOUND end it; others may pass.
func (l *Lease) Renew(ctx context.Context) error {
	epoch := l.Info().Epoch
	var reply wire.LeaseReply
	err := l.c.call(ctx, subjects.APIRenew, wire.LeaseRequest{Lease: l.id, Epoch: &epoch}, &reply)
	switch {
	case err == nil:
		l.update(reply.Lease)
	case endsLease(wire.CodeOf(err)):
		l.finish(err)
	}
	return err
}

// refresh asks for the lease's present state without renewing it.
func (l *Lease) refresh(ctx context.Context) error {
	var reply wire.LeaseReply
	if err := l.c.call(ctx, subjects.APIGet, wire.LeaseRequest{Lease: l.id}, &reply); err != nil {
		return err
	}
	l.update(reply.Lease)
	return nil
}

func (l *Lease) update(info LeaseInfo) {
	if info.ID != l.id {
		return
	}
	l.mu.Lock()
	l.info = info
	l.mu.Unlock()
}

func endsLease(code Code) bool {
	switch code {
	case CodeLeaseExpired, CodeLeaseReleased, CodeLeaseLost, CodeStaleEpoch, CodeNotFound:
		return true
	}
	return false
}

// finish records why the lease ended; the first reason counts.
func (l *Lease) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended, l.err = true, err
		close(l.done)
	}
}

// Release ends the lease: its commands are ended and its sandbox is torn down.
// It stops the renewals even when it fails; call it again then.
// Releasing a released lease is no error.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	keeper, freed, epoch := l.keeper, l.freed, l.info.Epoch
	l.mu.Unlock()
	if freed {
		return nil
	}
	if keeper != nil {
		keeper.cancel()
		<-keeper.done
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	var reply wire.LeaseReply
	err := l.c.exchange(ctx, subjects.API(l.c.opts.Tenant, subjects.APIRelease),
		wire.Encode(wire.LeaseRequest{Lease: l.id, Epoch: &epoch}), releaseTimeout, &reply)
	if err != nil && wire.CodeOf(err) != CodeLeaseReleased {
		return err
	}
	if err == nil {
		l.update(reply.Lease)
	}
	l.mu.Lock()
	l.freed = true
	l.mu.Unlock()
	l.finish(wire.Errorf(CodeLeaseReleased, "the lease was released by this client"))
	return nil
}

// KeepAlive renews the lease in the background, at a third of its TTL ± 20 %,
// until it ends, Release, or Close of the client. Calling it again does nothing.
func (l *Lease) KeepAlive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper == nil && !l.ended {
		l.keeper = l.c.crew.start(l.keep)
	}
}

// defaultTTL stands in for a lease that says none.
const defaultTTL = 30 * time.Second

// keep renews until ctx ends or the lease has ended. A renewal that is not
// answered is tried again soon, then less often: only a refusal ends a lease,
// and a worker keeps a busy one while no coordinator answers.
func (l *Lease) keep(ctx context.Context) {
	wait, retry := l.period(), time.Duration(0)
	for l.c.pause(ctx, wait) {
		err := l.Renew(ctx)
		switch {
		case err == nil:
			wait, retry = l.period(), 0
		case endsLease(wire.CodeOf(err)):
			l.c.notify(Notice{Kind: LeaseGone, Lease: l.id, Text: "the lease " + l.id + " has ended: " + err.Error()})
			return
		default:
			retry = min(max(2*retry, l.period()/8), l.period())
			wait = retry
		}
		select {
		case <-l.done: // by another call
			return
		default:
		}
	}
}

// period is a third of the TTL.
func (l *Lease) period() time.Duration {
	ttl := time.Duration(l.Info().TTLMS) * time.Millisecond
	if ttl <= 0 {
		ttl = defaultTTL
	}
	return ttl / 3
}
