package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestMainJob(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	if l.Metadata[wire.MetadataPluginID] != "plug" || l.Route != d.req.Route || l.Epoch.N != 1 || l.Epoch.Incarnation == "" {
		t.Fatalf("lease: %+v", l)
	}
	req := openOf(l, wire.ModeDuplex, "cat")
	reply := r.open(req)
	if reply.Channel != req.Channel || reply.Attach != 1 || len(reply.KeyUp) != wire.KeySize || reply.Credit.Stdin == 0 || reply.Route != d.req.Route {
		t.Fatalf("reply: %+v", reply)
	}
	var order wire.OpenOrder
	sent := d.last(subjects.WKOpen, &order)
	up, down := wire.KeyUp(order.Secret, 1), wire.KeyDown(order.Secret)
	if string(up[:]) != string(reply.KeyUp) || string(down[:]) != string(reply.KeyDown) {
		t.Fatal("the keys of client and worker do not belong together")
	}
	if string(sent.Body) != string(req.Body) || order.ProviderLeaseID != l.ProviderLeaseID || order.Epoch != l.Epoch || order.Tenant != "default" {
		t.Fatalf("order: %+v", order)
	}
	r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "open" && c.WorkerState == "live" })
	if o := r.ended(d, l, req.Channel, wire.ExitedWith(3)); o.String() != "exited(3)" {
		t.Fatalf("on record: %s", o)
	}
	// The first writer wins, and the second is told.
	if o := r.ended(d, l, req.Channel, wire.ExitedWith(4)); o.String() != "exited(3)" {
		t.Fatalf("on record: %s", o)
	}
	c := r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "ended" })
	if c.EndedBy != "worker" || c.Totals.Stdout != 3 {
		t.Fatalf("channel: %+v", c)
	}
	var released wire.LeaseReply
	r.must(subjects.API("default", subjects.APIRelease), wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch}, &released)
	if released.Lease.State != "released" || d.count(subjects.WKRelease) != 1 {
		t.Fatalf("after release: %+v", released.Lease)
	}
}

func TestG002_UnknownAndForeignLeaseAreTheSame(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	r.double("w1")
	own := r.acquire("mine")
	unknown := uuid.NewString()
	for _, verb := range []string{subjects.APIGet, subjects.APIRenew, subjects.APIRelease, subjects.APIOpen, subjects.APIExecute, subjects.APIChannel, subjects.APIKill} {
		var texts []string
		for _, id := range []string{unknown, own.ID} {
			l := wire.Lease{ID: id, Epoch: own.Epoch}
			var req any = wire.LeaseRequest{Lease: id, Epoch: &own.Epoch}
			switch verb {
			case subjects.APIOpen:
				req = openOf(l, wire.ModeDuplex, "true")
			case subjects.APIExecute:
				req = openOf(l, wire.ModeExecute, "true")
			case subjects.APIChannel, subjects.APIKill:
				req = wire.ChannelRequest{Lease: id, Channel: uuid.New()}
			}
			e := r.refused(wire.CodeNotFound, subjects.API("other", verb), req)
			texts = append(texts, strings.ReplaceAll(string(wire.Encode(e)), id, ""))
		}
		if texts[0] != texts[1] {
			t.Errorf("%s tells them apart: %s", verb, texts)
		}
	}
}

func TestG009_ScopeComesFromTheLease(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	for _, field := range []string{"tenant", "worker", "pluginId", "providerLeaseId", "metadata"} {
		r.refused(wire.CodeInvalidArgument, subjects.API("default", subjects.APIAcquire), []byte(`{"idempotencyKey":"k","`+field+`":"x"}`))
		r.refused(wire.CodeInvalidArgument, subjects.API("default", subjects.APIOpen), []byte(`{"lease":"`+uuid.NewString()+`","`+field+`":"x"}`))
	}
	if n := d.count(subjects.WKBind) + d.count(subjects.WKOpen); n != 0 {
		t.Fatalf("the worker received %d orders", n)
	}
	// While the worker provisions, the lease has no metadata.
	gate := make(chan struct{})
	d.on(subjects.WKBind, func(o wire.Order) any {
		select {
		case <-gate:
			return bound(o, d)
		default:
			return wire.BindReply{Instance: d.req.Instance, State: wire.BindProvisioning}
		}
	})
	id := lease.ID("default", "k")
	got := make(chan wire.Lease, 1)
	go func() { got <- r.acquire("k") }()
	eventually(t, func() bool { return d.count(subjects.WKBind) > 1 })
	if l := r.leaseUntil(id, "pending"); len(l.Metadata) != 0 || l.ProviderLeaseID != "" {
		t.Fatalf("pending lease: %+v", l)
	}
	close(gate)
	if l := <-got; l.Metadata[wire.MetadataProvider] != doubleProvider {
		t.Fatalf("active lease: %+v", l)
	}
}

func TestG022_OneSlotHundredAcquires(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1", func(q *wire.RegisterRequest) { q.Slots = 1 })
	var wg sync.WaitGroup
	var granted, none atomic.Int32
	for i := range 100 {
		wg.Go(func() {
			err := r.ask(subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: fmt.Sprint(i)}, nil)
			switch {
			case err == nil:
				granted.Add(1)
			case wire.CodeOf(err) == wire.CodeNoWorker && strings.Contains(err.Error(), "slot"):
				none.Add(1)
			default:
				t.Errorf("acquire: %v", err)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 || none.Load() != 99 || d.count(subjects.WKBind) != 1 {
		t.Fatalf("granted %d, NO_WORKER %d, binds %d", granted.Load(), none.Load(), d.count(subjects.WKBind))
	}
}

func TestG023_RepeatedAcquireIsTheSameLease(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	stop := r.coordinator()
	d := r.double("w1")
	r.known("w1")
	// Both copies on their way at once, on two coordinators, then a late one.
	var wg sync.WaitGroup
	got := make([]wire.Lease, 8)
	for i := range got {
		wg.Go(func() { got[i] = r.acquire("same") })
	}
	wg.Wait()
	stop()
	got = append(got, r.acquire("same"))
	for _, l := range got {
		if l.ID != got[0].ID || l.Epoch != got[0].Epoch {
			t.Fatalf("two leases: %+v %+v", l, got[0])
		}
	}
	if n := d.count(subjects.WKBind); n != 1 {
		t.Fatalf("%d sandboxes", n)
	}
	r.refused(wire.CodeConflict, subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "same", Environment: "another"})
}

func TestG024_Release(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	release := subjects.API("default", subjects.APIRelease)
	older := wire.Epoch{Incarnation: l.Epoch.Incarnation, N: l.Epoch.N - 1}
	r.refused(wire.CodeStaleEpoch, release, wire.LeaseRequest{Lease: l.ID, Epoch: &older})
	r.refused(wire.CodeNotFound, subjects.API("other", subjects.APIRelease), wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch})
	r.must(release, wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch}, nil)
	r.must(release, wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch}, nil)
	if n := d.count(subjects.WKRelease); n != 1 {
		t.Fatalf("torn down %d times", n)
	}
	r.refused(wire.CodeLeaseReleased, subjects.API("default", subjects.APIRenew), wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch})
	r.refused(wire.CodeLeaseReleased, subjects.API("default", subjects.APIOpen), openOf(l, wire.ModeDuplex, "true"))
}

func TestReleaseWithoutWorkerIsPendingCleanup(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	d.kill()
	var reply wire.LeaseReply
	r.must(subjects.API("default", subjects.APIRelease), wire.LeaseRequest{Lease: l.ID, Epoch: &l.Epoch}, &reply)
	if reply.Lease.State != "pending_cleanup" {
		t.Fatalf("lease is %s", reply.Lease.State)
	}
}

func TestRenewAndList(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	a, b := r.acquire("a"), r.acquire("b")
	var renewed wire.LeaseReply
	r.must(subjects.API("default", subjects.APIRenew), wire.LeaseRequest{Lease: a.ID, Epoch: &a.Epoch}, &renewed)
	if !renewed.Lease.ExpiresAt.After(a.ExpiresAt) {
		t.Fatalf("expiry %v is not after %v", renewed.Lease.ExpiresAt, a.ExpiresAt)
	}
	stale := wire.Epoch{Incarnation: a.Epoch.Incarnation, N: a.Epoch.N + 1}
	r.refused(wire.CodeStaleEpoch, subjects.API("default", subjects.APIRenew), wire.LeaseRequest{Lease: a.ID, Epoch: &stale})
	gone := uuid.NewString()
	var busy wire.RenewReply
	r.must(subjects.ToCoordinator("w1", subjects.WRRenew), wire.RenewRequest{Instance: d.req.Instance, Leases: []wire.InventoryLease{
		{Tenant: "default", Lease: b.ID, Epoch: b.Epoch}, {Tenant: "default", Lease: b.ID, Epoch: stale}, {Tenant: "default", Lease: gone, Epoch: b.Epoch},
	}}, &busy)
	want := []wire.RefusedLease{{Lease: b.ID, Code: wire.CodeStaleEpoch}, {Lease: gone, Code: wire.CodeNotFound}}
	if !slices.Equal(busy.Refused, want) {
		t.Fatalf("refused: %v", busy.Refused)
	}
	// Another worker cannot renew what is not on it.
	r.double("w2")
	r.must(subjects.ToCoordinator("w2", subjects.WRRenew), wire.RenewRequest{Instance: d.req.Instance, Leases: []wire.InventoryLease{
		{Tenant: "default", Lease: b.ID, Epoch: b.Epoch}}}, &busy)
	if len(busy.Refused) != 1 || busy.Refused[0].Code != wire.CodeNotFound {
		t.Fatalf("another worker: %v", busy.Refused)
	}
	var list wire.LeaseList
	r.must(subjects.API("default", subjects.APIList), wire.ListRequest{}, &list)
	if len(list.Leases) != 2 || list.Next != "" {
		t.Fatalf("list: %+v", list)
	}
	r.must(subjects.API("default", subjects.APIList), wire.ListRequest{Cursor: "default." + min(a.ID, b.ID)}, &list)
	if len(list.Leases) != 1 || list.Leases[0].ID != max(a.ID, b.ID) {
		t.Fatalf("second page: %+v", list)
	}
	list = wire.LeaseList{}
	r.must(subjects.API("other", subjects.APIList), wire.ListRequest{}, &list)
	if len(list.Leases) != 0 {
		t.Fatalf("another tenant sees %+v", list)
	}
}

func TestBindRefusalMovesOn(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	full := func(wire.Order) any { return wire.Errorf(wire.CodeQuotaExceeded, "no slot is free") }
	a, b := r.double("w1"), r.double("w2")
	a.on(subjects.WKBind, full)
	b.on(subjects.WKBind, full)
	e := r.refused(wire.CodeNoWorker, subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "none"})
	if a.count(subjects.WKBind) != 1 || b.count(subjects.WKBind) != 1 {
		t.Fatalf("not both were asked: %v", e)
	}
	// A repeat says the same; a new key works once a worker takes leases again.
	r.refused(wire.CodeNoWorker, subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "none"})
	b.on(subjects.WKBind, func(o wire.Order) any { return bound(o, b) })
	l := r.acquire("some")
	if l.Route != b.req.Route {
		t.Fatalf("lease is on %s", l.Route)
	}
	if asked := a.count(subjects.WKBind) - 1; l.Epoch.N != uint64(asked)+1 {
		t.Fatalf("epoch %d after %d refusals", l.Epoch.N, asked)
	}
}

func TestBindThatHangsIsGivenUp(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.Bind = 300 * time.Millisecond })
	d := r.double("w1")
	d.on(subjects.WKBind, func(wire.Order) any { return nil })
	r.refused(wire.CodeDeadlineExceeded, subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "k"})
	// What the worker may have made is torn down under the same epoch.
	eventually(t, func() bool { return d.count(subjects.WKRelease) == 1 })
	r.leaseUntil(lease.ID("default", "k"), "failed")
}
