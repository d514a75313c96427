package coordinator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func (r *rig) js() jetstream.JetStream {
	js, err := jetstream.New(r.nc)
	if err != nil {
		r.t.Fatal(err)
	}
	return js
}

func TestStoreIsMadeOnceAndNeverInPart(t *testing.T) {
	r := newRig(t)
	js, ctx := r.js(), t.Context()
	first, err := openStore(ctx, js, 1, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	again, err := openStore(ctx, js, 1, zerolog.Nop())
	if err != nil || again.incarnation != first.incarnation || first.incarnation == "" {
		t.Fatalf("again: %v, incarnations %q %q", err, again.incarnation, first.incarnation)
	}
	for _, missing := range []string{bucketChannels, bucketLeases} {
		if err := js.DeleteStream(ctx, "KV_"+missing); err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(ctx, js, 1, zerolog.Nop()); wire.CodeOf(err) != wire.CodeUnavailable {
			t.Fatalf("%s missing: %v", missing, err)
		}
		if _, err := js.Stream(ctx, "KV_"+missing); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatalf("%s was made again: %v", missing, err)
		}
		if missing == bucketChannels { // bring it back for the next round
			if _, err := js.CreateStream(ctx, bucketConfig(bucketChannels, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A crash between the two creations: no marker, nothing granted. Begun again.
	if err := js.DeleteStream(ctx, "KV_"+bucketChannels); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, bucketConfig(bucketLeases, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(ctx, js, 1, zerolog.Nop()); err != nil {
		t.Fatalf("after a crash at the start: %v", err)
	}
}

func TestBucketLostWhileRunning(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	r.double("w1")
	l := r.acquire("one")
	if err := r.js().DeleteStream(t.Context(), "KV_"+bucketChannels); err != nil {
		t.Fatal(err)
	}
	r.refused(wire.CodeUnavailable, openSubject, openOf(l, wire.ModeDuplex, "true"))
	if _, err := r.js().Stream(t.Context(), "KV_"+bucketChannels); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatalf("it was made again: %v", err)
	}
}

func TestGuardedWrites(t *testing.T) {
	r := newRig(t)
	js, ctx := r.js(), t.Context()
	if _, err := openStore(ctx, js, 1, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	b := newBucket(js, bucketLeases, func(data []byte) (string, error) { return string(data), nil }, zerolog.Nop())
	var err error
	if b.cas.stream, err = js.Stream(ctx, "KV_"+bucketLeases); err != nil {
		t.Fatal(err)
	}
	e, err := b.create(ctx, "a.b", "1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.create(ctx, "a.b", "2"); !errors.Is(err, errFenced) {
		t.Fatalf("second create: %v", err)
	}
	next, err := b.update(ctx, "a.b", entry[string]{"3", e.rev})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.update(ctx, "a.b", entry[string]{"4", e.rev}); !errors.Is(err, errFenced) {
		t.Fatalf("update of an old revision: %v", err)
	}
	// A write that is known by its nonce happened, whatever the answer was.
	raw, err := b.cas.raw(ctx, "a.b")
	if err != nil {
		t.Fatal(err)
	}
	if rev, err := b.cas.mine(ctx, "a.b", raw.Header.Get(headerNonce), errFenced); err != nil || rev != next.rev {
		t.Fatalf("own write: %d %v", rev, err)
	}
	if _, err := b.cas.mine(ctx, "a.b", "another", errFenced); !errors.Is(err, errFenced) {
		t.Fatalf("foreign write: %v", err)
	}
	late, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	if _, err := b.update(late, "a.b", entry[string]{"5", next.rev}); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Fatalf("write out of time: %v", err)
	}
}

func TestF013_CodesOfGuardedWrites(t *testing.T) {
	for code, want := range map[jetstream.ErrorCode]casResult{10071: casFenced, 10164: casBusy, 10077: casUnknown} {
		if got := casOutcome(&jetstream.APIError{ErrorCode: code}); got != want {
			t.Errorf("%d: %v, want %v", code, got, want)
		}
	}
	if casOutcome(context.DeadlineExceeded) != casUnknown {
		t.Error("a timeout is definite")
	}
}

func TestLogStream(t *testing.T) {
	r := newRig(t)
	js, ctx := r.js(), t.Context()
	l := &logs{js: js, replicas: 1, sizes: []int64{64 << 20}, log: zerolog.Nop()}
	if err := l.ensure(ctx, "default"); err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(ctx, subjects.LogStream("default", 0))
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	if !logSame(c, l.config("default")) {
		t.Fatalf("what the server made is not what was wanted: %+v", c)
	}
	if c.PersistMode != jetstream.AsyncPersistMode || !c.DenyDelete || c.DenyPurge || c.AllowRollup || c.MaxConsumers <= 0 || c.DiscardNewPerSubject {
		t.Fatalf("config: %+v", c)
	}
	// The ring: per direction the newest 128 stay, and nothing is refused.
	ch := subjects.Channel{Tenant: "default", Route: "r", Lease: "l", Channel: "abcd"}
	sub, err := r.nc.SubscribeSync(ch.Live(subjects.Down))
	if err != nil {
		t.Fatal(err)
	}
	for range logRing + 5 {
		if _, err := js.Publish(ctx, ch.Data(subjects.Down), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := sub.NextMsg(5 * time.Second); err != nil || m.Header.Get("Nats-Subject") != ch.Data(subjects.Down) {
		t.Fatalf("republished: %v %v", m, err)
	}
	if info, err := st.Info(ctx); err != nil || info.State.Msgs != logRing {
		t.Fatalf("%d messages, %v", info.State.Msgs, err)
	}
	if err := st.DeleteMsg(ctx, 10); err == nil {
		t.Fatal("a message could be deleted")
	}
	if err := l.purge(ctx, ch); err != nil {
		t.Fatal(err)
	}
	if info, err := st.Info(ctx); err != nil || info.State.Msgs != 0 {
		t.Fatalf("after the purge: %v", err)
	}
	// A changed one is changed back.
	c.MaxMsgsPerSubject = 3
	if _, err := js.UpdateStream(ctx, c); err != nil {
		t.Fatal(err)
	}
	if err := l.ensure(ctx, "default"); err != nil {
		t.Fatal(err)
	}
	if st, err = js.Stream(ctx, st.CachedInfo().Config.Name); err != nil || !logSame(st.CachedInfo().Config, l.config("default")) {
		t.Fatalf("not changed back: %v", err)
	}
	// One that cannot be changed is reported.
	other := l.config("other")
	other.PersistMode = jetstream.DefaultPersistMode
	if _, err := js.CreateStream(ctx, other); err != nil {
		t.Fatal(err)
	}
	if err := l.ensure(ctx, "other"); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Fatalf("another persist mode: %v", err)
	}
}

func TestLogFitsTheServer(t *testing.T) {
	r := newRig(t)
	l := &logs{js: r.js(), replicas: 1, sizes: []int64{1 << 50, 32 << 20}, log: zerolog.Nop()}
	if err := l.ensure(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if err := l.ensure(t.Context(), "default"); err != nil {
		t.Fatalf("the smaller one is not accepted: %v", err)
	}
	l.sizes = []int64{1 << 50}
	if err := l.ensure(t.Context(), "other"); wire.CodeOf(err) != wire.CodeQuotaExceeded {
		t.Fatalf("too large: %v", err)
	}
}

func TestConfig(t *testing.T) {
	ok := natsbus.Options{URL: "nats://127.0.0.1:1"}
	for name, c := range map[string]Config{
		"tenant":   {NATS: ok, Tenants: []string{"a.b"}},
		"limit":    {NATS: ok, Limits: Limits{ChannelsPerLease: -1}},
		"logBytes": {NATS: ok, Limits: Limits{LogBytes: 5}},
	} {
		if _, err := New(c); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := New(Config{NATS: ok, WorkerLostAfter: time.Second})
	if err != nil || c.cfg.WorkerLostAfter != 7*time.Second {
		t.Fatalf("worker lost after %v, %v", c.cfg.WorkerLostAfter, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Fatalf("Run of a cancelled context: %v", err)
	}
}
