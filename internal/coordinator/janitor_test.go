package coordinator

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// parts builds the parts of a coordinator that does not run.
func (r *rig) parts(change ...func(*Config)) *parts {
	r.t.Helper()
	o := natsbus.Options{URL: r.srv.URL(), Auth: natsbus.Auth{Token: r.srv.Token()}}
	cfg := Config{NATS: o, Limits: Limits{LogBytes: 64 << 20}, Log: zerolog.Nop()}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	bus, err := natsbus.Connect(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(bus.Close)
	p, err := c.build(r.t.Context(), bus, cfg.Log)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func pendingLease(t *testing.T, p *parts, key string, at time.Time, d *double) lease.Record {
	t.Helper()
	rec, err := lease.New(at, lease.Request{Tenant: "default", Incarnation: p.store.incarnation, AcquireRequest: wire.AcquireRequest{IdempotencyKey: key}})
	if err == nil {
		rec, err = rec.Placed(at, lease.Place{Worker: d.req.Worker, Instance: d.req.Instance, Route: d.req.Route, Provider: doubleProvider})
	}
	if err == nil {
		_, err = p.store.leases.create(t.Context(), leaseKey("default", rec.ID), rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// What a coordinator that died left behind is finished by another.
func TestG031_UnfinishedGrantsAndTeardowns(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	d := r.silent(describe("w1"))
	d.on(subjects.WKRelease, func(wire.Order) any { return wire.Errorf(wire.CodeUnavailable, "not now") })
	long := time.Now().Add(-time.Hour)
	overdue := pendingLease(t, p, "overdue", long, d)
	young := pendingLease(t, p, "young", time.Now(), d)
	state := func(l lease.Record) lease.Record {
		e, _ := p.store.leases.peek(leaseKey("default", l.ID))
		return e.rec
	}
	p.janitor.unfinished(t.Context())
	if got := state(overdue); got.State != lease.PendingCleanup || got.Cleanup.Attempts != 1 {
		t.Fatalf("overdue grant: %s %+v", got.State, got.Cleanup)
	}
	if got := state(young); got.State != lease.Pending {
		t.Fatalf("young grant: %s", got.State)
	}
	// Not again before its time, then again, and it ends.
	p.janitor.unfinished(t.Context())
	if n := d.count(subjects.WKRelease); n != 1 {
		t.Fatalf("%d tries", n)
	}
	key := leaseKey("default", overdue.ID)
	e, _ := p.store.leases.peek(key)
	due := *e.rec.Cleanup
	due.After = long
	e.rec.Cleanup = &due
	if _, err := p.store.leases.update(t.Context(), key, e); err != nil {
		t.Fatal(err)
	}
	d.on(subjects.WKRelease, func(wire.Order) any { return wire.ReleaseReply{Instance: d.req.Instance} })
	p.janitor.unfinished(t.Context())
	if got := state(overdue); got.State != lease.Expired {
		t.Fatalf("after the second try: %s", got.State)
	}
	var order wire.ReleaseOrder
	if d.last(subjects.WKRelease, &order); order.Lease != overdue.ID || order.Epoch != overdue.Epoch {
		t.Fatalf("order: %+v", order)
	}
}

func TestEndedChannelsLeaveMemoryAndLog(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	js, now := r.js(), time.Now()
	put := func(ended time.Time) channel.Record {
		rec := channel.New(now, "default", uuid.NewString(), uuid.New(), wire.ModeDuplex, nil, channel.Home{Worker: "w1", Instance: "i1", Route: "r1"}, wire.NewSecret())
		if !ended.IsZero() {
			rec, _ = rec.WithEnd(ended, channel.ByWorker, wire.ExitedWith(0), nil)
		}
		if _, err := p.store.channels.create(t.Context(), keyOf(rec), rec); err != nil {
			t.Fatal(err)
		}
		for _, d := range []subjects.Dir{subjects.Up, subjects.Down} {
			if _, err := js.Publish(t.Context(), logChannel(rec).Data(d), []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		return rec
	}
	old, fresh, running := put(now.Add(-purgeAfter-time.Minute)), put(now), put(time.Time{})
	p.janitor.old(t.Context())
	for _, c := range []struct {
		rec  channel.Record
		kept bool
	}{{old, false}, {fresh, true}, {running, true}} {
		if _, ok := p.store.channels.peek(keyOf(c.rec)); ok != c.kept {
			t.Errorf("in memory: %t, want %t", ok, c.kept)
		}
		st, err := js.Stream(t.Context(), subjects.LogStream("default", 0))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.GetLastMsgForSubject(t.Context(), logChannel(c.rec).Data(subjects.Up)); (err == nil) != c.kept {
			t.Errorf("in the log: %v, want %t", err, c.kept)
		}
	}
	// What has left the memory is still found.
	if e, err := p.channels.find(t.Context(), "default", old.Lease, old.ID); err != nil || e.rec.State != channel.Ended {
		t.Fatalf("old channel: %+v %v", e.rec, err)
	}
}

// A coordinator that started after a worker's death has never heard of it.
func TestOrphansAreLostInTime(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	d := r.silent(describe("w1"))
	rec := pendingLease(t, p, "one", time.Now(), d)
	at := leaseTarget(rec)
	p.fleet.busUp()
	if gone := p.fleet.lost(map[registry.Target]bool{at: true}); len(gone) != 0 {
		t.Fatalf("lost at first sight: %v", gone)
	}
	p.fleet.mu.Lock()
	p.fleet.orphans[at] = time.Now().Add(-p.fleet.lostAfter)
	p.fleet.mu.Unlock()
	if gone := p.fleet.lost(map[registry.Target]bool{at: true}); gone[at] == "" {
		t.Fatal("not lost in time")
	}
	p.fleet.busDown() // own ears closed: the time counts anew
	if gone := p.fleet.lost(map[registry.Target]bool{at: true}); len(gone) != 0 {
		t.Fatalf("lost although nothing could be heard: %v", gone)
	}
}
