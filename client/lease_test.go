package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func acquire(t *testing.T, c *Client) *Lease {
	t.Helper()
	l, err := c.AcquireLease(t.Context(), AcquireOptions{})
	if err != nil {
		t.Fatalf("AcquireLease: %v", err)
	}
	return l
}

func TestAcquire_RenewsAtAThirdUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ctx, cancel := context.WithCancel(t.Context())
		l, err := d.client(Options{}).AcquireLease(ctx, AcquireOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cancel() // the context bounded the call alone
		time.Sleep(2 * time.Minute)
		if n := d.asked(subjects.APIRenew); n < 10 || n > 15 { // every 10 s ± 20 %
			t.Errorf("%d renewals in two minutes", n)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil { // no error, no second request
			t.Errorf("second Release: %v", err)
		}
		n := d.asked(subjects.APIRenew)
		time.Sleep(time.Minute)
		if more := d.asked(subjects.APIRenew) - n; more != 0 || d.asked(subjects.APIRelease) != 1 {
			t.Errorf("%d renewals after the release, %d releases", more, d.asked(subjects.APIRelease))
		}
		<-l.Done()
		if !errors.Is(l.Err(), ErrLeaseReleased) {
			t.Errorf("Err: %v", l.Err())
		}
	})
}

func TestAcquire_MakesAKey(t *testing.T) {
	d := newDouble(t)
	keys := map[string]bool{}
	inner := d.answers[subjects.APIAcquire]
	d.set(subjects.APIAcquire, func(ctx context.Context, b []byte) ([]byte, error) {
		var req wire.AcquireRequest
		if err := wire.DecodeStrict(b, wire.MaxControlBody, &req); err != nil {
			return nil, err
		}
		keys[req.IdempotencyKey] = true
		return inner(ctx, b)
	})
	c := d.client(Options{})
	acquire(t, c)
	acquire(t, c)
	if _, err := c.AcquireLease(t.Context(), AcquireOptions{IdempotencyKey: "mine"}); err != nil {
		t.Fatal(err)
	}
	if len(keys) != 3 || !keys["mine"] || keys[""] {
		t.Errorf("keys %v", keys)
	}
}

func TestKeeper_RefusalsEndTheLease(t *testing.T) {
	for _, code := range []Code{CodeLeaseExpired, CodeLeaseReleased, CodeLeaseLost, CodeStaleEpoch, CodeNotFound} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				var told notices
				l := acquire(t, d.client(Options{OnNotice: told.add}))
				d.set(subjects.APIRenew, refuse(code))
				<-l.Done()
				if CodeOf(l.Err()) != code || told.kinds() != "lease_lost" {
					t.Errorf("Err %v, notices %q", l.Err(), told.kinds())
				}
			})
		})
	}
}

// With every coordinator gone for an hour the lease is not given up here: the
// worker keeps it, and the coordinators adopt it when they return.
func TestKeeper_OutageDoesNotEndTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		l := acquire(t, d.client(Options{}))
		renew := d.answers[subjects.APIRenew]
		d.set(subjects.APIRenew, noResponders)
		time.Sleep(time.Hour)
		select {
		case <-l.Done():
			t.Errorf("given up: %v", l.Err())
		default:
		}
		if n := d.asked(subjects.APIRenew); n > 2000 {
			t.Errorf("%d renewals in an hour without an answer", n)
		}
		d.set(subjects.APIRenew, renew)
		n := d.asked(subjects.APIRenew)
		time.Sleep(time.Minute)
		if more := d.asked(subjects.APIRenew) - n; more < 4 || more > 9 {
			t.Errorf("%d renewals in the minute after the return", more)
		}
	})
}

func TestGetLease_RenewsOnlyWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		l := d.lease(d.client(Options{}))
		time.Sleep(time.Hour)
		if n := d.asked(subjects.APIRenew); n != 0 {
			t.Errorf("%d renewals", n)
		}
		l.KeepAlive()
		l.KeepAlive()
		time.Sleep(time.Minute)
		if n := d.asked(subjects.APIRenew); n < 4 || n > 8 {
			t.Errorf("%d renewals in a minute", n)
		}
	})
}

func TestRelease_FailureStopsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		l := acquire(t, d.client(Options{}))
		d.set(subjects.APIRelease, noResponders)
		if err := l.Release(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Release: %v", err)
		}
		time.Sleep(time.Minute)
		if n := d.asked(subjects.APIRenew); n != 0 {
			t.Errorf("%d renewals", n)
		}
		d.set(subjects.APIRelease, refuse(CodeLeaseReleased)) // the first one was carried out
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release again: %v", err)
		}
	})
}

func TestListLeases_FollowsTheCursor(t *testing.T) {
	d := newDouble(t)
	d.set(subjects.APIList, func(_ context.Context, b []byte) ([]byte, error) {
		var req wire.ListRequest
		if err := wire.DecodeStrict(b, wire.MaxControlBody, &req); err != nil {
			return nil, err
		}
		next := map[string]string{"": "a", "a": "b", "b": ""}[req.Cursor]
		return wire.Encode(wire.LeaseList{Leases: []wire.Lease{{ID: "after " + req.Cursor}}, Next: next}), nil
	})
	all, err := d.client(Options{}).ListLeases(t.Context())
	if err != nil || len(all) != 3 || all[2].ID != "after b" {
		t.Errorf("%v, %v", all, err)
	}
}

// A lease that was fetched while its sandbox was being made is asked for again.
func TestOpen_LeaseWithoutARoute(t *testing.T) {
	d := newDouble(t)
	route := ""
	d.set(subjects.APIGet, func(context.Context, []byte) ([]byte, error) {
		return wire.Encode(wire.LeaseReply{Lease: wire.Lease{ID: testLease, State: "pending", Route: route}}), nil
	})
	l := d.lease(d.client(Options{}))
	if _, err := l.Open(t.Context(), Command{Argv: []string{"x"}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Open without a sandbox: %v", err)
	}
	route = testRoute
	mustOpen(t, l, Command{})
}
