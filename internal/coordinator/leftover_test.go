package coordinator

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// stuck is the record of an open that nobody goes on with.
func stuck(at time.Time, leaseID string, epoch wire.Epoch, d *double) channel.Record {
	home := channel.Home{Worker: d.req.Worker, Instance: d.req.Instance, Route: d.req.Route, Epoch: epoch}
	return channel.New(at, "default", leaseID, uuid.New(), wire.ModeDuplex, body(wire.ModeDuplex, "true"), home, wire.NewSecret())
}

// What a coordinator left behind that died between its record and the worker
// takes no place for ever, and starts nothing late.
func TestAnOpenThatNobodyGoesOnWithEnds(t *testing.T) {
	r := newRig(t)
	one := func(c *Config) { c.Limits.ChannelsPerLease = 1 }
	stop := r.coordinator(one)
	d := r.double("w1")
	l := r.acquire("one")
	rec := stuck(time.Now().Add(-time.Hour), l.ID, l.Epoch, d)
	if _, err := r.js().Publish(t.Context(), "$KV."+bucketChannels+"."+keyOf(rec), rec.Encode()); err != nil {
		t.Fatal(err)
	}
	stop()
	r.coordinator(one)
	got := r.channelUntil(l.ID, rec.ID, func(c wire.Channel) bool { return c.State == "ended" })
	if got.Outcome.Kind != wire.Unknown || got.EndedBy != "coordinator" {
		t.Errorf("ended as %s by %s", got.Outcome, got.EndedBy)
	}
	var order wire.CloseOrder
	if d.last(subjects.WKClose, &order); order.Channel != rec.ID || order.Instance != d.req.Instance || order.Epoch != l.Epoch {
		t.Errorf("the worker was told %+v", order)
	}
	r.open(openOf(l, wire.ModeDuplex, "true"))
}

// Only old opens are looked into, and what the worker runs goes on.
func TestOpensAreJudgedByTheirWorker(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	d := r.silent(describe("w1"))
	other := r.silent(describe("w2"))
	p.fleet.busUp()
	if _, err := p.fleet.register(t.Context(), subjects.Subject{Worker: "w1"}, wire.Encode(d.req)); err != nil {
		t.Fatal(err)
	}
	put := func(age time.Duration, d *double) channel.Record {
		rec := stuck(time.Now().Add(-age), uuid.NewString(), wire.Epoch{Incarnation: p.store.incarnation, N: 1}, d)
		if _, err := p.store.channels.create(t.Context(), keyOf(rec), rec); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	runs, young, unheard, busy, gone := put(time.Hour, d), put(p.channels.limits.Open, d), put(time.Hour, other), put(time.Hour, d), put(time.Hour, d)
	p.channels.claims[keyOf(busy)] = busy
	d.on(subjects.WKInventory, func(wire.Order) any { return nil })
	p.janitor.unopened(t.Context()) // no answer, no change
	state := func(r channel.Record) channel.Record {
		e, _ := p.store.channels.peek(keyOf(r))
		return e.rec
	}
	if got := state(gone); got.State != channel.Opening || d.count(subjects.WKClose) != 0 {
		t.Fatalf("judged without the worker: %s", got.State)
	}
	d.on(subjects.WKInventory, func(wire.Order) any {
		req := d.req
		for range 600 { // more than other answers may have
			req.Inventory.Channels = append(req.Inventory.Channels, wire.InventoryChannel{Tenant: "default", Lease: runs.Lease, Channel: uuid.New()})
		}
		req.Inventory.Channels = append(req.Inventory.Channels, wire.InventoryChannel{Tenant: runs.Tenant, Lease: runs.Lease, Channel: runs.ID})
		return req
	})
	p.janitor.unopened(t.Context())
	for name, c := range map[string]struct {
		rec  channel.Record
		want channel.State
	}{
		"that runs": {runs, channel.Open}, "that is young": {young, channel.Opening}, "of a worker unheard of": {unheard, channel.Opening},
		"that is on its way": {busy, channel.Opening}, "that is not there": {gone, channel.Ended},
	} {
		if got := state(c.rec); got.State != c.want {
			t.Errorf("a channel %s is %s, want %s", name, got.State, c.want)
		}
	}
	if n := d.count(subjects.WKClose); n != 1 {
		t.Errorf("%d orders to close", n)
	}
	// A repeat of the open that came to nothing is told so.
	if err := refusalOnRecord(state(gone)); wire.CodeOf(err) != wire.CodeOf(gate.OpenFailed("")) {
		t.Errorf("a repeat is told %v", err)
	}
}

// Channels end with their lease, their worker's word first.
func TestChannelsEndWithTheirLease(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(lease.Record, time.Time) (lease.Record, error)
		want string
	}{
		"released": {func(r lease.Record, at time.Time) (lease.Record, error) {
			r, _, err := r.Release(at, nil, "")
			if err == nil {
				r, err = r.TornDown(at)
			}
			return r, err
		}, "lease_released"},
		"expired": {func(r lease.Record, at time.Time) (lease.Record, error) { return r.Expired(at, "") }, "lease_expired"},
		"lost":    {func(r lease.Record, at time.Time) (lease.Record, error) { return r.Lost(at, "") }, "lease_lost"},
		"failed":  {func(r lease.Record, at time.Time) (lease.Record, error) { return r.Failed(at, "") }, "lease_released"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := r.parts()
			d := r.silent(describe("w1"))
			rec := pendingLease(t, p, "one", time.Now(), d)
			key := leaseKey(rec.Tenant, rec.ID)
			put := func(open bool) channel.Record {
				ch := stuck(time.Now(), rec.ID, rec.Epoch, d)
				if open {
					ch, _ = ch.WithOpened(time.Now(), wire.UpCredit{})
				}
				if _, err := p.store.channels.create(t.Context(), keyOf(ch), ch); err != nil {
					t.Fatal(err)
				}
				return ch
			}
			open, opening, reported := put(true), put(false), put(true)
			outcome := func(r channel.Record) string {
				e, _ := p.store.channels.peek(keyOf(r))
				if e.rec.State != channel.Ended {
					return string(e.rec.State)
				}
				return e.rec.Outcome().String()
			}
			ended := func(at time.Time) {
				t.Helper()
				e, _ := p.store.leases.peek(key)
				next := rec
				var err error
				if name != "failed" {
					next, err = rec.Bound(at, bound(wire.Order{Order: wire.Encode(wire.BindOrder{OrderHead: wire.OrderHead{Lease: rec.ID}})}, d))
				}
				if err == nil {
					next, err = c.end(next, at)
				}
				if err == nil {
					_, err = p.store.leases.update(t.Context(), key, entry[lease.Record]{next, e.rev})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			p.janitor.leftBehind(t.Context())
			ended(time.Now())
			p.janitor.leftBehind(t.Context())
			if a, b := outcome(open), outcome(opening); a != "open" || b != "opening" {
				t.Fatalf("before their worker had the time to report: %s, %s", a, b)
			}
			report := wire.EndedRequest{Instance: d.req.Instance, Tenant: rec.Tenant, Lease: rec.ID, Channel: reported.ID, Outcome: wire.ExitedWith(3)}
			if _, err := p.channels.ended(t.Context(), subjects.Subject{Worker: "w1"}, wire.Encode(report)); err != nil {
				t.Fatal(err)
			}
			ended(time.Now().Add(-reportTime))
			p.janitor.leftBehind(t.Context())
			if a, b, x := outcome(open), outcome(opening), outcome(reported); a != c.want || b != c.want || x != "exited(3)" {
				t.Errorf("ended as %s, %s, and as the worker says %s; want %s", a, b, x, c.want)
			}
		})
	}
}

// A table tells of the versions of a record in their order, whoever brings them.
func TestChangesAreToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket[int](nil, "", nil, zerolog.Nop())
		var told []int
		first := make(chan struct{})
		b.changed = func(_ string, _, rec int) {
			if rec == 1 {
				<-first
			}
			told = append(told, rec)
		}
		for rev := range 3 {
			go b.apply("k", rev+1, uint64(rev+1))
			synctest.Wait()
		}
		if e, _ := b.peek("k"); e.rec != 3 {
			t.Errorf("the table waits for who is told: %d", e.rec)
		}
		close(first)
		synctest.Wait()
		if !slices.Equal(told, []int{1, 2, 3}) {
			t.Errorf("told %v", told)
		}
	})
}

// A lease that ends while its worker registers gives its slot back.
func TestAnEndedLeaseIsNotAdopted(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	d := r.silent(describe("w1"))
	rec := pendingLease(t, p, "one", time.Now(), d)
	adopted := p.fleet.adopted
	ended := make(chan struct{})
	p.fleet.adopted = func(worker string) []string {
		ids := adopted(worker)
		go func() {
			defer close(ended)
			if _, _, err := p.store.leases.modify(t.Context(), leaseKey(rec.Tenant, rec.ID), func(r lease.Record) (lease.Record, error) {
				return r.Failed(time.Now(), "")
			}); err != nil {
				t.Error(err)
			}
		}()
		// It is on record, and in the table, before the registration goes on.
		eventually(t, func() bool {
			e, _ := p.store.leases.peek(leaseKey(rec.Tenant, rec.ID))
			return e.rec.State.Ended()
		})
		return ids
	}
	if _, err := p.fleet.register(t.Context(), subjects.Subject{Worker: "w1"}, wire.Encode(d.req)); err != nil {
		t.Fatal(err)
	}
	<-ended
	p.fleet.with(func(tab *registry.Table, now time.Time) {
		if w, _ := tab.View(now, "w1"); w.SlotsUsed != 0 {
			t.Errorf("%d slots are used", w.SlotsUsed)
		}
	})
}

// Ended leases are listed for days, but not without a bound.
func TestEndedLeasesStayListed(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	now := time.Now()
	put := func(id string, ended time.Time) {
		rec := lease.Record{Tenant: "default", ID: id, State: lease.Released, Times: lease.Times{Ended: ended}}
		p.store.leases.apply(leaseKey("default", id), rec, 1)
	}
	listed := func(id string) bool { _, ok := p.store.leases.peek(leaseKey("default", id)); return ok }
	put("ancient", now.Add(-leasesListed-time.Minute))
	put("old", now.Add(-leasesListed+time.Minute))
	put("new", now)
	p.janitor.old(t.Context())
	if listed("ancient") || !listed("old") || !listed("new") {
		t.Fatalf("listed: ancient %t, old %t, new %t", listed("ancient"), listed("old"), listed("new"))
	}
	for range maxLeasesListed {
		put(uuid.NewString(), now.Add(-time.Hour))
	}
	p.janitor.old(t.Context())
	n := p.store.leases.count(func(string, lease.Record) bool { return true })
	if listed("old") || !listed("new") || n != maxLeasesListed+1 {
		t.Errorf("with too many: old %t, new %t, %d in all", listed("old"), listed("new"), n)
	}
}
