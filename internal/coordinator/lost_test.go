package coordinator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// store publishes a down frame of a channel as its worker would.
func (d *double) store(l wire.Lease, order wire.OpenOrder, secret []byte, f wire.Frame) {
	d.t.Helper()
	js, err := jetstream.New(d.nc)
	if err != nil {
		d.t.Fatal(err)
	}
	buf := append(make([]byte, wire.HeaderSize), f.Payload...)
	data := wire.NewFrameKey(wire.KeyDown(secret), subjects.Down).Seal(buf, f)
	ch := subjects.Channel{Tenant: l.Tenant, Route: l.Route, Lease: l.ID, Channel: order.Channel.String()}
	if _, err := js.Publish(d.t.Context(), ch.Data(subjects.Down), data); err != nil {
		d.t.Fatal(err)
	}
}

// A lost worker's channels end as their log does, if it ends in an EXIT that
// the channel's secret vouches for.
func TestWorkerLost(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.WorkerLostAfter = time.Second }) // raised to 7 s
	d := r.double("w1")
	l := r.acquire("one")
	silent, exited, forged := openOf(l, wire.ModeDuplex, "a"), openOf(l, wire.ModeDuplex, "b"), openOf(l, wire.ModeDuplex, "c")
	exit := wire.Frame{Type: wire.FrameExit, Epoch: l.Epoch.N, Seq: 2, Payload: wire.Encode(wire.Exit{Outcome: wire.ExitedWith(5), Totals: wire.Totals{Stdout: 2}})}
	var order wire.OpenOrder
	r.open(silent)
	d.last(subjects.WKOpen, &order)
	d.store(l, order, order.Secret, wire.Frame{Type: wire.FrameStdout, Epoch: l.Epoch.N, Seq: 1, Payload: []byte("hi")})
	r.open(exited)
	d.last(subjects.WKOpen, &order)
	d.store(l, order, order.Secret, exit)
	r.open(forged)
	d.last(subjects.WKOpen, &order)
	d.store(l, order, wire.NewSecret(), exit)
	began := time.Now()
	d.kill()
	eventually(t, func() bool { w, _ := r.worker("w1"); return w.State == "dead" })
	t.Logf("dead after %v", time.Since(began))
	r.leaseUntil(l.ID, "lost")
	t.Logf("lost after %v", time.Since(began))
	if took := time.Since(began); took < 6*time.Second {
		t.Fatalf("lost after only %v", took)
	}
	for _, c := range []struct {
		req  wire.OpenRequest
		want string
	}{{silent, "worker_lost"}, {exited, "exited(5)"}, {forged, "worker_lost"}} {
		got := r.channelUntil(l.ID, c.req.Channel, func(c wire.Channel) bool { return c.State == "ended" })
		if got.Outcome.String() != c.want || got.EndedBy != "coordinator" {
			t.Errorf("ended as %s by %s, want %s", got.Outcome, got.EndedBy, c.want)
		}
		if known := got.Totals != nil && *got.Totals == (wire.Totals{Stdout: 2}); known != (c.want == "exited(5)") {
			t.Errorf("ended as %s with totals %v", got.Outcome, got.Totals)
		}
		// Its bytes may be read although nothing is left to hold.
		var left wire.AttachReply
		r.must(attachSubject, attachOf(c.req), &left)
		if left.Attach != 0 || left.Outcome.String() != c.want || len(left.KeyDown) != wire.KeySize {
			t.Errorf("an attach afterwards: %+v", left)
		}
	}
	r.refused(wire.CodeLeaseLost, openSubject, openOf(l, wire.ModeDuplex, "true"))
	// A late report of the worker changes nothing.
	back := r.silent(d.req)
	if o := r.ended(back, l, silent.Channel, wire.ExitedWith(0)); o.Kind != wire.WorkerLost {
		t.Fatalf("a late end became %s", o)
	}
}

func TestF001_F011_Register(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	r.double("w1")
	w, ok := r.worker("w1")
	if !ok || w.State != "live" || w.Slots != 4 || w.PluginID != "plug" {
		t.Fatalf("worker: %+v", w)
	}
	l := r.acquire("the instant it is listed")
	r.open(openOf(l, wire.ModeDuplex, "true"))
	e := r.refused(wire.CodeUnsupportedVersion, subjects.ToCoordinator("w99", subjects.WRRegister),
		[]byte(`{"protocolVersion":99,"worker":"w99","instance":"i99","aNewField":{"x":[1]}}`))
	if !strings.Contains(e.Message, "99") || !strings.Contains(e.Message, "1") {
		t.Errorf("%q does not name the versions", e.Message)
	}
	if w, ok := r.worker("w99"); !ok || w.Reason == "" {
		t.Errorf("the list does not show the refused one: %+v", w)
	}
	if w, _ := r.worker("w1"); w.State != "live" {
		t.Fatalf("the other worker is %s", w.State)
	}
}

func TestSecondInstanceIsRefusedWhileTheFirstAnswers(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	register := subjects.ToCoordinator("w1", subjects.WRRegister)
	clone := r.silent(describe("w1"))
	r.refused(wire.CodeConflict, register, clone.req)
	if w, _ := r.worker("w1"); w.Instance != d.req.Instance {
		t.Fatal("the clone has the id")
	}
	// A restart after kill -9 is accepted at once.
	d.kill()
	r.must(register, clone.req, nil)
	if w, _ := r.worker("w1"); w.Instance != clone.req.Instance {
		t.Fatal("the new instance does not have the id")
	}
}

func TestCoordinatorThatStartsLaterAsksForTheDescription(t *testing.T) {
	r := newRig(t)
	stop := r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	stop()
	r.coordinator()
	// The first use finds the worker, heard of or not.
	r.open(openOf(l, wire.ModeDuplex, "true"))
	eventually(t, func() bool { w, ok := r.worker("w1"); return ok && w.State == "live" })
	if d.count(subjects.WKInventory) == 0 {
		t.Fatal("nobody asked")
	}
}

func TestRestartOfTheServer(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	get := func() error {
		var reply wire.LeaseReply
		err := r.ask(subjects.API("default", subjects.APIGet), wire.LeaseRequest{Lease: l.ID}, &reply)
		if err == nil && reply.Lease.State != "active" {
			t.Fatalf("the lease is %s", reply.Lease.State)
		}
		return err
	}
	r.srv.Restart(t, true)
	eventually(t, func() bool { return r.nc.IsConnected() && d.nc.IsConnected() && get() == nil })
	running := openOf(l, wire.ModeDuplex, "true")
	r.open(running)
	r.channelUntil(l.ID, running.Channel, func(c wire.Channel) bool { return c.State == "open" })
	// With the store gone nothing is granted, and it is not made again.
	r.srv.Restart(t, false)
	eventually(t, func() bool { return r.nc.IsConnected() && d.nc.IsConnected() && get() == nil })
	eventually(t, func() bool {
		return wire.CodeOf(r.ask(openSubject, openOf(l, wire.ModeDuplex, "true"), nil)) == wire.CodeUnavailable
	})
	if _, err := r.js().Stream(t.Context(), "KV_"+bucketLeases); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatalf("the bucket: %v", err)
	}
	// The log only holds what senders still have: that one is.
	for _, tenant := range []string{"default", "other"} {
		eventually(t, func() bool {
			_, err := r.js().Stream(t.Context(), subjects.LogStream(tenant, 0))
			return err == nil
		})
	}
	r.refused(wire.CodeUnavailable, openSubject, openOf(l, wire.ModeDuplex, "true"))
	r.refused(wire.CodeUnavailable, attachSubject, attachOf(running))
	r.refused(wire.CodeUnavailable, subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "two"})
	// What runs goes on; its end is asked for until there is a place for it.
	var renewed wire.RenewReply
	r.must(subjects.ToCoordinator("w1", subjects.WRRenew), wire.RenewRequest{
		Instance: d.req.Instance, Leases: []wire.InventoryLease{{Tenant: l.Tenant, Lease: l.ID, Epoch: l.Epoch}},
	}, &renewed)
	if len(renewed.Refused) != 0 {
		t.Fatalf("a renewal was refused: %+v", renewed)
	}
	ended := wire.EndedRequest{Instance: d.req.Instance, Tenant: l.Tenant, Lease: l.ID, Channel: running.Channel, Outcome: wire.ExitedWith(0)}
	r.refused(wire.CodeUnavailable, subjects.ToCoordinator("w1", subjects.WREnded), ended)
	// An operator starts anew: the worker is told that nobody knows the channel.
	for _, name := range []string{bucketLeases, bucketChannels} {
		if _, err := r.js().CreateStream(t.Context(), bucketConfig(name, 1)); err != nil {
			t.Fatal(err)
		}
	}
	r.refused(wire.CodeNotFound, subjects.ToCoordinator("w1", subjects.WREnded), ended)
}

// A renewal by the worker holds although it cannot be written; one by the holder
// does not say so.
func TestF022_RenewalsWhileTheStoreIsAway(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	d := r.silent(describe("w1"))
	long := time.Now().Add(-2 * renewStored)
	rec := pendingLease(t, p, "one", long, d)
	key := leaseKey(rec.Tenant, rec.ID)
	e, _ := p.store.leases.peek(key)
	bind := bound(wire.Order{Order: wire.Encode(wire.BindOrder{OrderHead: wire.OrderHead{Lease: rec.ID}})}, d)
	active, err := e.rec.Bound(long, bind)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.store.leases.update(t.Context(), key, entry[lease.Record]{active, e.rev}); err != nil {
		t.Fatal(err)
	}
	if err := r.js().DeleteStream(t.Context(), "KV_"+bucketLeases); err != nil {
		t.Fatal(err)
	}
	at := leaseTarget(active)
	for range 2 {
		if got, err := p.leases.extend(t.Context(), rec.Tenant, rec.ID, &active.Epoch, &at); err != nil || !got.Times.Renewed.After(long) {
			t.Fatalf("by the worker: %v", err)
		}
	}
	if _, err := p.leases.extend(t.Context(), rec.Tenant, rec.ID, &active.Epoch, nil); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Fatalf("by the holder: %v", err)
	}
	// Back, and empty: it is nobody's.
	if _, err := r.js().CreateStream(t.Context(), bucketConfig(bucketLeases, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.leases.extend(t.Context(), rec.Tenant, rec.ID, &active.Epoch, nil); wire.CodeOf(err) != wire.CodeNotFound {
		t.Fatalf("on an empty store: %v", err)
	}
}
