package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// everyVerb is every subject that coordinators answer.
func everyVerb() []string {
	var out []string
	for _, v := range []string{"acquire", "get", "list", "renew", "release", "open", "execute", "attach", "observe", "channel", "channels", "kill", "info"} {
		out = append(out, subjects.API("default", v))
	}
	for _, v := range []string{"workers", "leases", "channels"} {
		out = append(out, subjects.Operator(v))
	}
	for _, v := range []string{"register", "renew", "ended", "replay"} {
		out = append(out, subjects.ToCoordinator("w1", v))
	}
	return append(out, subjects.Replay("default"))
}

func TestNatsMicroListsTheService(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	msg, err := r.nc.Request("$SRV.INFO."+serviceName, nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Endpoints) != len(everyVerb()) {
		t.Fatalf("%d endpoints, want %d", len(info.Endpoints), len(everyVerb()))
	}
	var got wire.Info
	r.must(subjects.API("default", subjects.APIInfo), wire.ListRequest{}, &got)
	if got.ProtocolVersion != wire.Version || got.Limits["channelsPerLease"] != 16 {
		t.Fatalf("info: %+v", got)
	}
	// A verb that is not served has no responders.
	if err := r.ask(subjects.API("default", "dance"), wire.ListRequest{}, nil); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("dance: %v", err)
	}
}

func TestS029_MalformedBodiesOnEveryVerb(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	bodies := map[string]string{
		"trailing":       `{} {}`,
		"key twice":      `{"lease":"a","Lease":"b"}`,
		"deep":           strings.Repeat("[", 50_000),
		"number":         `{"ttlMs":1e999}`,
		"surrogate":      `{"lease":"\ud800"}`,
		"null":           `{"lease":null}`,
		"unknown field":  `{"nosuch":1}`,
		"not an object":  `"x"`,
		"cut off":        `{"lease":"`,
		"not UTF-8":      "{\"lease\":\"\xc3\x28\"}",
		"nested unknown": `{"epoch":{"n":1,"x":2}}`,
	}
	for _, subject := range everyVerb() {
		for name, b := range bodies {
			began := time.Now()
			err := r.ask(subject, []byte(b), nil)
			if wire.CodeOf(err) != wire.CodeInvalidArgument {
				t.Errorf("%s %s: %v", subject, name, err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s %s took %v", subject, name, took)
			}
		}
	}
	if n := d.count(subjects.WKBind) + d.count(subjects.WKOpen); n != 0 {
		t.Fatalf("the worker received %d orders", n)
	}
	r.acquire("still there")
}

// badIDs are those of S-008 that can be in a JSON string.
func badIDs() []string {
	return []string{"a.b", "*", ">", "a b", "\t", "a\r\nPUB x", "", "_INBOX", "$JS", "..", "-a", "a-", strings.Repeat("a", 64), strings.Repeat("a", 5000)}
}

func TestS008_S010_IDsInBodies(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	for _, id := range badIDs() {
		bad := wire.Lease{ID: id, Epoch: l.Epoch}
		for subject, req := range map[string]any{
			subjects.API("default", subjects.APIGet):            wire.LeaseRequest{Lease: id},
			subjects.API("default", subjects.APIRelease):        wire.LeaseRequest{Lease: id},
			subjects.API("default", subjects.APIRenew):          wire.LeaseRequest{Lease: id},
			subjects.API("default", subjects.APIOpen):           openOf(bad, wire.ModeDuplex, "true"),
			subjects.API("default", subjects.APIAttach):         attachOf(openOf(bad, wire.ModeDuplex, "true")),
			subjects.API("default", subjects.APIObserve):        attachOf(openOf(bad, wire.ModeDuplex, "true")),
			subjects.Replay("default"):                          wire.ReplayRequest{Lease: id, Channel: uuid.New(), Direction: "down", MaxBytes: 1},
			subjects.ToCoordinator("w1", subjects.WRReplay):     wire.ReplayRequest{Lease: id, Channel: uuid.New(), Direction: "up", MaxBytes: 1},
			subjects.API("default", subjects.APIChannel):        wire.ChannelRequest{Lease: id, Channel: uuid.New()},
			subjects.API("default", subjects.APIKill):           wire.ChannelRequest{Lease: id, Channel: uuid.New()},
			subjects.ToCoordinator("w1", subjects.WREnded):      wire.EndedRequest{Instance: d.req.Instance, Tenant: id, Lease: l.ID, Channel: uuid.New(), Outcome: wire.ExitedWith(0)},
			subjects.ToCoordinator("w1", subjects.WRRegister):   func() any { q := describe("w1"); q.Worker = id; return q }(),
			subjects.ToCoordinator("new1", subjects.WRRegister): func() any { q := describe("new1"); q.Route = id; return q }(),
		} {
			if err := r.ask(subject, req, nil); wire.CodeOf(err) != wire.CodeInvalidArgument {
				t.Errorf("%s with %q: %v", subject, id[:min(len(id), 20)], err)
			}
		}
	}
	r.double("w"+strings.Repeat("a", 62), func(q *wire.RegisterRequest) { q.Route = "rlong" }) // 63 characters
	r.acquire("after all")
}

func TestS008_IDsOnSubjects(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	for _, tenant := range []string{"-a", "a-", "_INBOX", "$JS", "A", strings.Repeat("a", 64)} {
		r.refused(wire.CodeInvalidArgument, subjects.API(tenant, subjects.APIList), wire.ListRequest{})
		r.refused(wire.CodeInvalidArgument, subjects.ToCoordinator(tenant, subjects.WRRenew), wire.RenewRequest{})
	}
	r.refused(wire.CodePermissionDenied, subjects.API("unlisted", subjects.APIList), wire.ListRequest{})
	r.refused(wire.CodePermissionDenied, subjects.Replay("unlisted"), wire.ListRequest{})
	if !r.nc.IsConnected() || r.nc.Stats().Reconnects != 0 {
		t.Fatal("the connection did not stay up")
	}
}

func TestS011_ReplySubjects(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	list := subjects.API("default", subjects.APIList)
	var mu sync.Mutex
	var seen []string
	sub, err := r.nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, m.Subject)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	replies := []string{"$JS.API.STREAM.DELETE.X", subjects.ToWorker("w1", subjects.WKOpen), list, "weft.v1.wk.w1.release", "_inbox.a", "_INBOX..a", "$KV.WEFT_LEASES.a.b"}
	for _, reply := range replies {
		if err := r.nc.PublishRequest(list, reply, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	// A request after them, on the same subscription, is answered after them.
	r.must(list, wire.ListRequest{}, nil)
	if _, err := js.Stream(t.Context(), "X"); err != nil {
		t.Fatalf("stream X: %v", err)
	}
	if n := d.count(subjects.WKOpen) + d.count(subjects.WKRelease); n != 0 {
		t.Fatalf("the worker received %d orders", n)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, s := range seen {
		if s == "_inbox.a" || strings.HasPrefix(s, "$JS.API.STREAM.DELETE") || strings.HasPrefix(s, "$KV.WEFT_LEASES.a") {
			t.Errorf("something was sent to %s", s)
		}
	}
}

func TestS012_NoHeaderGoesOutAgain(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	msg := nats.NewMsg(subjects.API("default", subjects.APIList))
	msg.Data = []byte(`{}`)
	for _, h := range []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-TTL", "Nats-Trace-Dest", "Nats-Expected-Last-Sequence"} {
		msg.Header.Set(h, "all")
	}
	reply, err := r.nc.RequestMsg(msg, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if len(reply.Header) != 0 {
		t.Fatalf("headers of the reply: %v", reply.Header)
	}
}

// serviceRig runs a bare service with one endpoint.
func serviceRig(t *testing.T, r *rig, nc *nats.Conn, size int, h func(context.Context, subjects.Subject, []byte) (any, error)) (s *service, stop func(), ups chan struct{}) {
	c := newCrew(size)
	var running atomic.Pointer[micro.Service]
	s = &service{
		add: func(nc *nats.Conn, c micro.Config) (micro.Service, error) {
			svc, err := micro.AddService(nc, c)
			running.Store(&svc)
			return svc, err
		},
		nc: nc, name: "one", tenants: map[string]bool{"default": true}, log: zerolog.Nop(),
		endpoints: []endpoint{{name: "api-info", subject: subjects.APIs(subjects.APIInfo), timeout: time.Second, crew: c, handle: h}},
	}
	ups = make(chan struct{}, 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, func() { ups <- struct{}{} })
		c.close()
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-ups
	return s, func() {
		if err := (*running.Load()).Stop(); err != nil {
			t.Error(err)
		}
	}, ups
}

func TestServiceIsStartedAgain(t *testing.T) {
	r := newRig(t)
	var closed sync.Once
	wasClosed := make(chan struct{})
	nc := r.srv.Connect(t, nats.ClosedHandler(func(*nats.Conn) { closed.Do(func() { close(wasClosed) }) }))
	_, stop, ups := serviceRig(t, r, nc, 4, func(context.Context, subjects.Subject, []byte) (any, error) { return wire.Info{}, nil })
	r.must(subjects.API("default", subjects.APIInfo), wire.ListRequest{}, nil)
	for range 3 {
		stop() // as if by itself
		<-ups
		r.must(subjects.API("default", subjects.APIInfo), wire.ListRequest{}, nil)
	}
	// micro takes over the connection's handlers; ours is still called.
	nc.Close()
	<-wasClosed
}

// F11 says that a slow consumer stops the whole service. If that is so or not,
// requests are answered afterwards.
func TestF11_SlowConsumerDoesNotSilenceTheService(t *testing.T) {
	r := newRig(t)
	nc := r.srv.Connect(t)
	serviceRig(t, r, nc, 4, func(context.Context, subjects.Subject, []byte) (any, error) { return wire.Info{}, nil })
	sub, err := nc.SubscribeSync("slow")
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(1, -1); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := r.nc.Publish("slow", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { n, _ := sub.Dropped(); return n > 0 })
	eventually(t, func() bool { return r.ask(subjects.API("default", subjects.APIInfo), wire.ListRequest{}, nil) == nil })
}

func TestS011_BadRepliesAreCounted(t *testing.T) {
	r := newRig(t)
	called := make(chan struct{}, 8)
	s, _, _ := serviceRig(t, r, r.srv.Connect(t), 4, func(context.Context, subjects.Subject, []byte) (any, error) {
		called <- struct{}{}
		return wire.Info{}, nil
	})
	info := subjects.API("default", subjects.APIInfo)
	for _, reply := range []string{subjects.ToWorker("w1", subjects.WKOpen), info} {
		if err := r.nc.PublishRequest(info, reply, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	r.must(info, wire.ListRequest{}, nil)
	if n := s.badReply.Load(); n != 2 || len(called) != 1 {
		t.Fatalf("bad_reply %d, handled %d", n, len(called))
	}
}

func TestTooManyRequests(t *testing.T) {
	r := newRig(t)
	nc := r.srv.Connect(t)
	hold := make(chan struct{})
	entered := make(chan struct{}, 8)
	serviceRig(t, r, nc, 2, func(context.Context, subjects.Subject, []byte) (any, error) {
		entered <- struct{}{}
		<-hold
		return wire.Info{}, nil
	})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { r.must(subjects.API("default", subjects.APIInfo), wire.ListRequest{}, nil) })
		<-entered
	}
	e := r.refused(wire.CodeTooManyRequests, subjects.API("default", subjects.APIInfo), wire.ListRequest{})
	if e.Details["retryAfterMs"] == "" || !e.Retryable {
		t.Fatalf("refusal: %+v", e)
	}
	close(hold)
	wg.Wait()
}
