package lease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/wire"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func request() lease.Request {
	return lease.Request{
		Tenant: "acme", Holder: "agent", Incarnation: "inc",
		AcquireRequest: wire.AcquireRequest{IdempotencyKey: "key-1", Environment: "build", Labels: map[string]string{"zone": "a"}},
	}
}

var place = lease.Place{Worker: "w", Instance: "i", Route: "r", Provider: "local"}

func bindReply() wire.BindReply {
	return wire.BindReply{
		Instance: "i", State: wire.BindBound, Driver: "process", ProviderLeaseID: "sb-1",
		Metadata:     wire.Metadata{"sandboxProviderPlugin": "p", "pluginId": "p", "provider": "local"},
		Capabilities: []wire.Capability{wire.CapExecute, wire.CapDuplexCommandStream},
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func active(t *testing.T) lease.Record {
	t.Helper()
	ok := must[lease.Record](t)
	r := ok(lease.New(t0, request()))
	r = ok(r.Placed(t0, place))
	return ok(r.Bound(t0.Add(time.Second), bindReply()))
}

func wantCode(t *testing.T, what string, err error, code wire.Code) {
	t.Helper()
	if wire.CodeOf(err) != code {
		t.Errorf("%s: %v, want %q", what, err, code)
	}
}

func TestNewDefaultsAndView(t *testing.T) {
	r := active(t)
	id := uuid.MustParse(r.ID)
	if id.Version() != 5 || r.ID != lease.ID("acme", "key-1") || wire.CheckLeaseID(r.ID) != nil {
		t.Errorf("id %s is not the version 5 UUID of tenant and key", r.ID)
	}
	if lease.ID("acme", "b") == lease.ID("acm", "eb") || lease.ID("a", "k") == lease.ID("b", "k") {
		t.Error("ids of different tenants collide")
	}
	want := wire.Lease{
		ID: r.ID, Tenant: "acme", Environment: "build", Driver: "process", State: "active", Policy: "ephemeral",
		Epoch: wire.Epoch{Incarnation: "inc", N: 1}, Route: "r", ProviderLeaseID: "sb-1", Metadata: bindReply().Metadata,
		Capabilities: bindReply().Capabilities, TTLMS: 30_000, CreatedAt: t0, ExpiresAt: t0.Add(31 * time.Second),
	}
	if d := cmp.Diff(want, r.View()); d != "" {
		t.Error(d)
	}
	if r.HardEnd() != t0.Add(7*24*time.Hour) {
		t.Errorf("hard end %s", r.HardEnd())
	}
}

func TestG009_NothingOfTheSandboxBeforeTheWorkerSaysIt(t *testing.T) {
	q := request()
	q.Plugin, q.Provider = "p", "local"
	r := must[lease.Record](t)(lease.New(t0, q))
	p := must[lease.Record](t)(r.Placed(t0, place))
	for _, v := range []wire.Lease{r.View(), p.View()} {
		if v.ProviderLeaseID != "" || v.Metadata != nil || v.Capabilities != nil || v.Driver != "" {
			t.Errorf("a pending lease shows %+v", v)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*lease.Request){
		"no key":         func(q *lease.Request) { q.IdempotencyKey = "" },
		"long key":       func(q *lease.Request) { q.IdempotencyKey = strings.Repeat("k", 129) },
		"key with NUL":   func(q *lease.Request) { q.IdempotencyKey = "a\x00" },
		"tenant":         func(q *lease.Request) { q.Tenant = "a.b" },
		"environment":    func(q *lease.Request) { q.Environment = "a\u202e" },
		"plugin":         func(q *lease.Request) { q.Plugin = "a b" },
		"label":          func(q *lease.Request) { q.Labels = map[string]string{"Bad Key": ""} },
		"unknown policy": func(q *lease.Request) { q.Policy = "forever" },
		"later policy":   func(q *lease.Request) { q.Policy = string(lease.ReuseByEnvironment) },
		"short ttl":      func(q *lease.Request) { q.TTLMS = 999 },
		"long ttl":       func(q *lease.Request) { q.TTLMS = lease.MaxTTL.Milliseconds() + 1 },
		"negative ttl":   func(q *lease.Request) { q.TTLMS = -1 },
		"long life":      func(q *lease.Request) { q.LifeMS = lease.MaxLife.Milliseconds() + 1 },
	} {
		q := request()
		change(&q)
		_, err := lease.New(t0, q)
		wantCode(t, name, err, wire.CodeInvalidArgument)
	}
}

func TestG023_SameKeySameLease(t *testing.T) {
	r := must[lease.Record](t)(lease.New(t0, request()))
	again := must[lease.Record](t)(lease.New(t0.Add(time.Hour), request()))
	if r.ID != again.ID {
		t.Error("a repeat has another id")
	}
	if err := r.Matches(request().AcquireRequest); err != nil {
		t.Errorf("a repeat does not match: %v", err)
	}
	other := request()
	other.Labels = map[string]string{"zone": "b"}
	wantCode(t, "other body", r.Matches(other.AcquireRequest), wire.CodeConflict)
}

func TestRetryRaisesTheEpoch(t *testing.T) {
	ok := must[lease.Record](t)
	r := ok(lease.New(t0, request()))
	if r.Epoch.N != 0 {
		t.Errorf("epoch %d before a worker was asked", r.Epoch.N)
	}
	first := ok(r.Placed(t0, place))
	second := ok(first.Placed(t0, lease.Place{Worker: "w2", Instance: "i2", Route: "r2", Provider: "local"}))
	if first.Epoch.N != 1 || second.Epoch.N != 2 || second.Place.Worker != "w2" {
		t.Errorf("epochs %d, %d at %s", first.Epoch.N, second.Epoch.N, second.Place.Worker)
	}
	_, err := second.Bound(t0, bindReply())
	wantCode(t, "a late bind of the first worker", err, wire.CodeWorkerNotRunning)
	bound := ok(first.Bound(t0, bindReply()))
	_, err = bound.Placed(t0, place)
	wantCode(t, "an active lease moves to another worker", err, wire.CodeConflict)
	_, err = bound.Bound(t0, bindReply())
	wantCode(t, "bound twice", err, wire.CodeConflict)
}

func TestBoundRefusesWhatItCannotStore(t *testing.T) {
	r := must[lease.Record](t)(must[lease.Record](t)(lease.New(t0, request())).Placed(t0, place))
	for name, change := range map[string]func(*wire.BindReply){
		"provisioning": func(b *wire.BindReply) { b.State = wire.BindProvisioning },
		"driver":       func(b *wire.BindReply) { b.Driver = "a\x1b" },
		"lease id":     func(b *wire.BindReply) { b.ProviderLeaseID = strings.Repeat("x", 257) },
		"key":          func(b *wire.BindReply) { b.Metadata = wire.Metadata{"": "x"} },
		"value":        func(b *wire.BindReply) { b.Metadata = wire.Metadata{"k": "\x00"} },
		"size":         func(b *wire.BindReply) { b.Metadata = wire.Metadata{"k": strings.Repeat("<", 5000)} },
	} {
		b := bindReply()
		change(&b)
		n, err := r.Bound(t0, b)
		wantCode(t, name, err, wire.CodeInvalidArgument)
		if n.State != lease.Pending {
			t.Errorf("%s: moved to %s", name, n.State)
		}
	}
	b := bindReply()
	b.Metadata, b.ProviderLeaseID = nil, "" // the gate says so, not the bind
	if _, err := r.Bound(t0, b); err != nil {
		t.Errorf("incomplete metadata: %v", err)
	}
}

func TestCheckUse(t *testing.T) {
	ok := must[lease.Record](t)
	a := active(t)
	old := wire.Epoch{Incarnation: "inc"}
	released, _, _ := a.Release(t0, nil, "done")
	pending := ok(lease.New(t0, request()))
	placed := ok(pending.Placed(t0, place))
	uncertain := ok(placed.Abandon(t0, "timeout"))
	provider := a
	provider.Times.ProviderEnds = t0.Add(time.Minute)
	for _, c := range []struct {
		name  string
		r     lease.Record
		at    time.Duration
		epoch wire.Epoch
		want  wire.Code
	}{
		{"active", a, 0, a.Epoch, ""},
		{"overdue but not expired by its worker", a, time.Hour, a.Epoch, ""},
		{"just before the end of its life", a, lease.MaxLife - 1, a.Epoch, ""},
		{"end of its life", a, lease.MaxLife, a.Epoch, wire.CodeLeaseExpired},
		{"the provider's end", provider, time.Minute, a.Epoch, wire.CodeLeaseExpired},
		{"older epoch", a, 0, old, wire.CodeStaleEpoch},
		{"newer epoch", a, 0, wire.Epoch{Incarnation: "inc", N: 2}, wire.CodeStaleEpoch},
		{"other incarnation", a, 0, wire.Epoch{Incarnation: "inc2", N: 1}, wire.CodeStaleEpoch},
		{"being released, with an older epoch", released, 0, old, wire.CodeLeaseReleased},
		{"released", ok(released.TornDown(t0)), 0, a.Epoch, wire.CodeLeaseReleased},
		{"expired", ok(a.Expired(t0, "idle")), 0, a.Epoch, wire.CodeLeaseExpired},
		{"lost", ok(a.Lost(t0, "silent")), 0, a.Epoch, wire.CodeLeaseLost},
		{"failed", ok(placed.Failed(t0, "none")), 0, a.Epoch, wire.CodeLeaseReleased},
		{"uncertain", uncertain, 0, a.Epoch, wire.CodeLeaseReleased},
		{"pending", placed, 0, a.Epoch, wire.CodeUnavailable},
	} {
		wantCode(t, c.name, c.r.CheckUse(t0.Add(c.at), c.epoch), c.want)
	}
}

func TestG024_Release(t *testing.T) {
	a := active(t)
	old := wire.Epoch{Incarnation: "inc"}
	if _, changed, err := a.Release(t0, &old, ""); changed || wire.CodeOf(err) != wire.CodeStaleEpoch {
		t.Errorf("older epoch: changed %t, %v; want STALE_EPOCH", changed, err)
	}
	r, changed, err := a.Release(t0, &a.Epoch, "done")
	if err != nil || !changed || r.State != lease.PendingCleanup || r.Reason != "done" || r.Cleanup.For != lease.Released {
		t.Fatalf("release: %+v, %t, %v", r, changed, err)
	}
	if again, changed, err := r.Release(t0, &a.Epoch, "again"); err != nil || changed || again.Reason != "done" {
		t.Errorf("release while it is torn down: changed %t, %v; want ok and nothing", changed, err)
	}
	end := must[lease.Record](t)(r.TornDown(t0.Add(time.Minute)))
	if end.State != lease.Released || end.Times.Ended != t0.Add(time.Minute) {
		t.Errorf("ended as %s at %s", end.State, end.Times.Ended)
	}
	if again, changed, err := end.Release(t0, &a.Epoch, "again"); err != nil || changed || cmp.Diff(end, again) != "" {
		t.Errorf("released twice: changed %t, %v; want ok and nothing", changed, err)
	}
	if a.State != lease.Active || a.Cleanup != nil {
		t.Error("a move changed the record it was made from")
	}
	pending := must[lease.Record](t)(lease.New(t0, request()))
	if p, changed, err := pending.Release(t0, nil, ""); err != nil || !changed || p.State != lease.Released {
		t.Errorf("release before any worker was asked: %s, %t, %v; want released at once", p.State, changed, err)
	}
}

func TestG030_TornDownAfterAFailedTryIsExpired(t *testing.T) {
	r, _, _ := active(t).Release(t0, nil, "done")
	r = must[lease.Record](t)(r.TeardownFailed(t0, t0.Add(10*time.Second)))
	if r.State != lease.PendingCleanup || r.Cleanup.Attempts != 1 || r.Cleanup.After != t0.Add(10*time.Second) {
		t.Fatalf("%s, %+v", r.State, r.Cleanup)
	}
	r = must[lease.Record](t)(r.TornDown(t0.Add(10 * time.Second)))
	if r.State != lease.Expired || r.Reason != "done" {
		t.Errorf("%s because %q, want expired", r.State, r.Reason)
	}
}

func TestRenew(t *testing.T) {
	ok := must[lease.Record](t)
	a := active(t)
	r := ok(a.Renew(t0.Add(20*time.Second), &a.Epoch))
	if r.ExpiresAt() != t0.Add(50*time.Second) || !r.Times.Changed.Equal(a.Times.Changed) {
		t.Errorf("expires %s, changed %s", r.ExpiresAt(), r.Times.Changed)
	}
	if back := ok(r.Renew(t0.Add(10*time.Second), nil)); back.ExpiresAt() != r.ExpiresAt() {
		t.Errorf("an older renewal shortened the lease to %s", back.ExpiresAt())
	}
	near := a
	near.Times.ProviderEnds = t0.Add(40 * time.Second)
	if n := ok(near.Renew(t0.Add(30*time.Second), nil)); n.ExpiresAt() != t0.Add(40*time.Second) {
		t.Errorf("a renewal passed the hard end: %s", n.ExpiresAt())
	}
	_, err := a.Renew(t0, &wire.Epoch{Incarnation: "inc"})
	wantCode(t, "older epoch", err, wire.CodeStaleEpoch)
	_, err = ok(a.Expired(t0, "")).Renew(t0, nil)
	wantCode(t, "an expired lease is revived", err, wire.CodeLeaseExpired)
	_, err = near.Renew(t0.Add(40*time.Second), nil)
	wantCode(t, "past the hard end", err, wire.CodeLeaseExpired)
}

func TestNarrowAndAllows(t *testing.T) {
	a := active(t)
	n := must[lease.Record](t)(a.Narrow(t0, wire.CapDuplexCommandStream))
	n = must[lease.Record](t)(n.Narrow(t0, wire.CapDuplexCommandStream))
	if n.Allows(wire.CapDuplexCommandStream) || !n.Allows(wire.CapExecute) || !a.Allows(wire.CapDuplexCommandStream) || len(n.Narrowed) != 1 {
		t.Errorf("narrowed %v", n.Narrowed)
	}
	if v := n.View().Capabilities; len(v) != 1 || v[0] != wire.CapExecute {
		t.Errorf("shown %v, want execute alone", v)
	}
	if a.Allows(wire.CapConcurrentSyncOperations) {
		t.Error("allows what the worker did not list")
	}
	a.Narrowed = make([]wire.Capability, 0, 4)
	one := must[lease.Record](t)(a.Narrow(t0, "one"))
	two := must[lease.Record](t)(a.Narrow(t0, "two"))
	if one.Allows("one") || one.Narrowed[0] != "one" || two.Narrowed[0] != "two" {
		t.Errorf("two moves share memory: %v, %v", one.Narrowed, two.Narrowed)
	}
	_, err := must[lease.Record](t)(a.Lost(t0, "")).Narrow(t0, wire.CapExecute)
	wantCode(t, "an ended lease is narrowed", err, wire.CodeConflict)
}

func TestCompareEpoch(t *testing.T) {
	e := func(inc string, n uint64) wire.Epoch { return wire.Epoch{Incarnation: inc, N: n} }
	for _, c := range []struct {
		a, b  wire.Epoch
		order int
		ok    bool
	}{{e("x", 1), e("x", 2), -1, true}, {e("x", 2), e("x", 2), 0, true}, {e("x", 3), e("x", 2), 1, true}, {e("x", 1), e("y", 2), 0, false}} {
		if order, ok := lease.CompareEpoch(c.a, c.b); order != c.order || ok != c.ok {
			t.Errorf("%v to %v: %d, %t", c.a, c.b, order, ok)
		}
	}
}

// moves are all of them, each with arguments that are in order.
func moves(now time.Time) map[string]func(lease.Record) (lease.Record, error) {
	release := func(r lease.Record) (lease.Record, error) { n, _, err := r.Release(now, nil, "r"); return n, err }
	return map[string]func(lease.Record) (lease.Record, error){
		"Placed":         func(r lease.Record) (lease.Record, error) { return r.Placed(now, place) },
		"Bound":          func(r lease.Record) (lease.Record, error) { return r.Bound(now, bindReply()) },
		"Renew":          func(r lease.Record) (lease.Record, error) { return r.Renew(now, nil) },
		"Narrow":         func(r lease.Record) (lease.Record, error) { return r.Narrow(now, wire.CapExecute) },
		"Release":        release,
		"Abandon":        func(r lease.Record) (lease.Record, error) { return r.Abandon(now, "a") },
		"Failed":         func(r lease.Record) (lease.Record, error) { return r.Failed(now, "f") },
		"Expired":        func(r lease.Record) (lease.Record, error) { return r.Expired(now, "e") },
		"Lost":           func(r lease.Record) (lease.Record, error) { return r.Lost(now, "l") },
		"TornDown":       func(r lease.Record) (lease.Record, error) { return r.TornDown(now) },
		"TeardownFailed": func(r lease.Record) (lease.Record, error) { return r.TeardownFailed(now, now) },
	}
}

// TestMoves: from any reachable record, whatever is tried: an ended record never
// changes, the epoch never falls, the state only moves as the table says, a
// refused move returns the record as it was, and what is reached can be stored.
func TestMoves(t *testing.T) {
	names := []string{"Placed", "Bound", "Renew", "Narrow", "Release", "Abandon", "Failed", "Expired", "Lost", "TornDown", "TeardownFailed"}
	rapid.Check(t, func(t *rapid.T) {
		r, err := lease.New(t0, request())
		if err != nil {
			t.Fatal(err)
		}
		now := t0
		for range rapid.IntRange(1, 12).Draw(t, "moves") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			name := rapid.SampledFrom(names).Draw(t, "move")
			before := string(r.Encode())
			n, err := moves(now)[name](r)
			switch {
			case string(r.Encode()) != before:
				t.Fatalf("%s changed the record it was called on", name)
			case err != nil && string(n.Encode()) != before:
				t.Fatalf("%s was refused and changed the record", name)
			case err != nil && wire.CodeOf(err) == "":
				t.Fatalf("%s: untyped error %v", name, err)
			case r.State.Ended() && string(n.Encode()) != before:
				t.Fatalf("%s changed a record that is %s", name, r.State)
			case n.State != r.State && !r.State.CanBecome(n.State):
				t.Fatalf("%s: %s became %s", name, r.State, n.State)
			}
			if order, ok := lease.CompareEpoch(n.Epoch, r.Epoch); !ok || order < 0 || name != "Placed" && order != 0 {
				t.Fatalf("%s: epoch %v became %v", name, r.Epoch, n.Epoch)
			}
			back, err := lease.Decode(n.Encode())
			if err != nil {
				t.Fatalf("after %s: %v", name, err)
			}
			if d := cmp.Diff(n, back); d != "" {
				t.Fatalf("after %s, stored and read:\n%s", name, d)
			}
			r = n
		}
	})
}

func TestStatesOfTheDesign(t *testing.T) {
	all := []lease.State{lease.Pending, lease.Active, lease.Retained, lease.PendingCleanup, lease.Released, lease.Expired, lease.Lost, lease.Failed}
	allowed := map[string]bool{}
	for _, s := range strings.Fields(`
		pending>pending pending>active pending>failed pending>released pending>pending_cleanup
		active>active active>retained active>expired active>lost active>pending_cleanup
		retained>active retained>expired retained>lost retained>pending_cleanup
		pending_cleanup>pending_cleanup pending_cleanup>released pending_cleanup>expired pending_cleanup>failed`) {
		allowed[s] = true
	}
	for _, from := range all {
		for _, to := range all {
			if got := from.CanBecome(to); got != allowed[string(from+">"+to)] {
				t.Errorf("%s may become %s: %t", from, to, got)
			}
			if from.Ended() && from.CanBecome(to) {
				t.Errorf("%s is not final", from)
			}
		}
	}
}

func TestReasonIsBounded(t *testing.T) {
	r := must[lease.Record](t)(active(t).Lost(t0, strings.Repeat("é", 400)))
	if len(r.Reason) != 512 || strings.ContainsRune(r.Reason, '\ufffd') {
		t.Errorf("reason of %d bytes, want 512 whole characters", len(r.Reason))
	}
}

func TestLargestRecordFits(t *testing.T) {
	q := request()
	q.IdempotencyKey = strings.Repeat(`"`, 128)
	q.Labels = map[string]string{}
	for i := range 64 {
		q.Labels[strings.Repeat("k", i+1)] = strings.Repeat("<", 30)
	}
	r, err := lease.New(t0, q)
	if err != nil {
		t.Fatal(err)
	}
	r = must[lease.Record](t)(r.Placed(t0, place))
	b := bindReply()
	b.Metadata["more"] = strings.Repeat("<", 2600)
	r = must[lease.Record](t)(r.Bound(t0, b))
	r = must[lease.Record](t)(r.Lost(t0, strings.Repeat("<", 600)))
	if n := len(r.Encode()); n > lease.MaxRecord || n < lease.MaxRecord/2 {
		t.Errorf("%d bytes; want near the limit of %d and within", n, lease.MaxRecord)
	}
	if _, err := lease.Decode(r.Encode()); err != nil {
		t.Error(err)
	}
	q.Labels["x"] = strings.Repeat("<", 256)
	for i := range 40 {
		q.Labels[strings.Repeat("k", i+1)] = strings.Repeat("<", 256)
	}
	delete(q.Labels, strings.Repeat("k", 64))
	_, err = lease.New(t0, q)
	wantCode(t, "labels beyond", err, wire.CodeInvalidArgument)
}

func TestDecodeRefuses(t *testing.T) {
	good := string(active(t).Encode())
	for name, bad := range map[string]string{
		"empty":         "",
		"cut off":       good[:len(good)-1],
		"trailing":      good + "{}",
		"unknown field": strings.Replace(good, `{`, `{"more":1,`, 1),
		"state":         strings.Replace(good, `"active"`, `"awake"`, 1),
		"other id":      strings.Replace(good, `"key-1"`, `"key-2"`, 1),
		"other tenant":  strings.Replace(good, `"acme"`, `"evil"`, 1),
		"no worker":     strings.Replace(good, `"worker":"w",`, ``, 1),
		"ttl":           strings.Replace(good, `"ttlMs":30000`, `"ttlMs":0`, 1),
		"ended, no end": strings.Replace(good, `"active"`, `"lost"`, 1),
		"no cleanup":    strings.Replace(good, `"active"`, `"pending_cleanup"`, 1),
	} {
		if bad == good {
			t.Errorf("%s: the test changes nothing", name)
		}
		if _, err := lease.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	r, _ := lease.New(t0, request())
	f.Add(r.Encode())
	r, _ = r.Placed(t0, place)
	r, _ = r.Bound(t0, bindReply())
	f.Add(r.Encode())
	r, _, _ = r.Release(t0, nil, "done")
	f.Add(r.Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := lease.Decode(data)
		if err != nil {
			return
		}
		_ = r.View()
		_ = r.CheckUse(t0, r.Epoch)
		again, err := lease.Decode(r.Encode())
		if err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		if string(again.Encode()) != string(r.Encode()) {
			t.Fatal("encoding is not stable")
		}
	})
}
