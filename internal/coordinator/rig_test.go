package coordinator

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// rig is a server, coordinators on it, and a client.
type rig struct {
	t   testing.TB
	srv *natstest.Server
	nc  *nats.Conn
}

func newRig(t testing.TB) *rig {
	srv := natstest.Start(t)
	return &rig{t: t, srv: srv, nc: srv.Connect(t)}
}

// coordinator runs one until the test ends or stop is called.
func (r *rig) coordinator(change ...func(*Config)) (stop func()) {
	r.t.Helper()
	cfg := Config{
		NATS:    natsbus.Options{URL: r.srv.URL(), Auth: natsbus.Auth{Token: r.srv.Token()}, Reconnect: 20 * time.Millisecond},
		Tenants: []string{"default", "other"},
		Limits:  Limits{LogBytes: 64 << 20},
		Log:     zerolog.New(zerolog.NewTestWriter(r.t)).Level(logLevel()).With().Timestamp().Logger(),
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-c.Ready():
	case err := <-done:
		cancel()
		r.t.Fatalf("the coordinator ended: %v", err)
	case <-time.After(20 * time.Second):
		cancel()
		r.t.Fatal("the coordinator is not ready")
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// ask sends one request and returns the error that came back.
func (r *rig) ask(subject string, req, reply any) error {
	r.t.Helper()
	body, ok := req.([]byte)
	if !ok {
		body = wire.Encode(req)
	}
	msg, err := r.nc.Request(subject, body, 5*time.Second)
	if err != nil {
		return err
	}
	if code := msg.Header.Get(micro.ErrorCodeHeader); code != "" {
		var e wire.Error
		if err := json.Unmarshal(msg.Data, &e); err != nil || string(e.Code) != code || msg.Header.Get(micro.ErrorHeader) == "" {
			r.t.Errorf("error reply is not both body and headers: %q %v", msg.Data, msg.Header)
		}
		return &e
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(msg.Data, reply)
}

// must fails the test on any error.
func (r *rig) must(subject string, req, reply any) {
	r.t.Helper()
	if err := r.ask(subject, req, reply); err != nil {
		r.t.Fatalf("%s: %v", subject, err)
	}
}

// refused fails the test unless the answer is an error with this code.
func (r *rig) refused(code wire.Code, subject string, req any) *wire.Error {
	r.t.Helper()
	err := r.ask(subject, req, nil)
	if wire.CodeOf(err) != code {
		r.t.Fatalf("%s: got %v, want %s", subject, err, code)
	}
	return wire.AsError(err)
}

func (r *rig) acquire(key string) wire.Lease {
	r.t.Helper()
	var reply wire.LeaseReply
	r.must(subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: key}, &reply)
	if reply.Lease.State != "active" {
		r.t.Fatalf("lease is %s", reply.Lease.State)
	}
	return reply.Lease
}

func body(mode wire.Mode, argv ...string) []byte {
	return wire.Encode(wire.Exec{Mode: mode, Argv: argv})
}

func openOf(l wire.Lease, mode wire.Mode, argv ...string) wire.OpenRequest {
	return wire.OpenRequest{
		Lease: l.ID, Epoch: l.Epoch, Channel: uuid.New(), Body: body(mode, argv...),
		Credit: wire.DownCredit{Stdout: 256 << 10, Stderr: 256 << 10, FrameLimit: 56},
	}
}

func (r *rig) open(req wire.OpenRequest) (reply wire.OpenReply) {
	r.t.Helper()
	r.must(subjects.API("default", subjects.APIOpen), req, &reply)
	return reply
}

// channelUntil asks for a channel until ok holds.
func (r *rig) channelUntil(lease string, id uuid.UUID, ok func(wire.Channel) bool) wire.Channel {
	r.t.Helper()
	var last wire.Channel
	eventually(r.t, func() bool {
		var reply wire.ChannelReply
		r.must(subjects.API("default", subjects.APIChannel), wire.ChannelRequest{Lease: lease, Channel: id}, &reply)
		last = reply.Channel
		return ok(last)
	})
	return last
}

func (r *rig) leaseUntil(id, state string) wire.Lease {
	r.t.Helper()
	var reply wire.LeaseReply
	eventually(r.t, func() bool {
		r.must(subjects.API("default", subjects.APIGet), wire.LeaseRequest{Lease: id}, &reply)
		return reply.Lease.State == state
	})
	return reply.Lease
}

// eventually polls for what no event announces.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("did not come to be")
		}
	}
}

// got is one order that a double received.
type got struct {
	verb  string
	order wire.Order
}

// double is a worker that answers as the test says.
type double struct {
	t    testing.TB
	nc   *nats.Conn
	req  wire.RegisterRequest
	desc string

	mu      sync.Mutex
	answers map[string]func(o wire.Order) any // nil answer: says nothing
	orders  []got
	seq     uint64
	state   wire.WorkerState
	used    int
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

const doubleProvider = "local"

func describe(name string) wire.RegisterRequest {
	return wire.RegisterRequest{
		ProtocolVersion: wire.Version, Worker: name, Instance: uuid.NewString(), HostBootID: uuid.NewString(),
		Route: "r" + name + "0123456789", PluginID: "plug", Slots: 4, Verbs: []string{"open", "execute"},
		Providers: []wire.Provider{{
			Name: doubleProvider, Driver: "process", Duplex: true,
			Capabilities: []wire.Capability{wire.CapDuplexCommandStream, wire.CapExecute},
		}},
	}
}

// double starts a worker double with a connection of its own.
func (r *rig) double(name string, change ...func(*wire.RegisterRequest)) *double {
	r.t.Helper()
	req := describe(name)
	for _, f := range change {
		f(&req)
	}
	d := r.silent(req)
	r.must(subjects.ToCoordinator(name, subjects.WRRegister), d.req, nil)
	d.beats()
	return d
}

// silent subscribes and does nothing else.
func (r *rig) silent(req wire.RegisterRequest) *double {
	r.t.Helper()
	d := &double{
		t: r.t, nc: r.srv.Connect(r.t), req: req, desc: descriptionOf(wire.Encode(req)),
		answers: map[string]func(wire.Order) any{}, stop: make(chan struct{}), state: wire.WorkerReady,
	}
	d.answers[subjects.WKBind] = func(o wire.Order) any { return bound(o, d) }
	d.answers[subjects.WKOpen] = func(o wire.Order) any { return opened(o, d) }
	d.answers[subjects.WKRelease] = func(wire.Order) any { return wire.ReleaseReply{Instance: req.Instance} }
	probe := func(wire.Order) any { return wire.ProbeReply{Instance: req.Instance, State: wire.WorkerReady} }
	d.answers[subjects.WKProbe], d.answers[subjects.WKClose] = probe, probe
	d.answers[subjects.WKInventory] = func(wire.Order) any { return req }
	if _, err := d.nc.Subscribe(subjects.Orders(req.Worker), d.take); err != nil {
		r.t.Fatal(err)
	}
	if err := d.nc.Flush(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(d.kill)
	return d
}

func bound(o wire.Order, d *double) wire.BindReply {
	var b wire.BindOrder
	_ = json.Unmarshal(o.Order, &b)
	return wire.BindReply{
		Instance: d.req.Instance, State: wire.BindBound, Driver: "process", ProviderLeaseID: "sandbox-" + b.Lease,
		Metadata: wire.Metadata{
			wire.MetadataSandboxProviderPlugin: "plug", wire.MetadataPluginID: "plug", wire.MetadataProvider: doubleProvider,
		},
		Capabilities: []wire.Capability{wire.CapDuplexCommandStream, wire.CapExecute},
	}
}

func opened(o wire.Order, d *double) wire.OpenedReply {
	var open wire.OpenOrder
	_ = json.Unmarshal(o.Order, &open)
	return wire.OpenedReply{Channel: open.Channel, Instance: d.req.Instance, Credit: wire.UpCredit{Stdin: 256 << 10, FrameLimit: 56}}
}

// on changes how a verb is answered.
func (d *double) on(verb string, f func(wire.Order) any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[verb] = f
}

func (d *double) take(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	var o wire.Order
	if err != nil || json.Unmarshal(m.Data, &o) != nil {
		d.t.Errorf("the worker received %s %q", m.Subject, m.Data)
		return
	}
	var h wire.OrderHead
	_ = json.Unmarshal(o.Order, &h)
	probing := s.Verb == subjects.WKProbe || s.Verb == subjects.WKInventory
	if probing && h.Instance != d.req.Instance {
		return
	}
	d.mu.Lock()
	d.orders = append(d.orders, got{s.Verb, o})
	answer := d.answers[s.Verb]
	d.mu.Unlock()
	if answer == nil {
		return
	}
	go func() {
		switch a := answer(o).(type) {
		case nil:
		case []byte:
			_ = m.Respond(a)
		case *wire.Error:
			out := nats.NewMsg(m.Reply)
			out.Header.Set(micro.ErrorHeader, a.Message)
			out.Header.Set(micro.ErrorCodeHeader, string(a.Code))
			out.Data = wire.Encode(a)
			_ = m.RespondMsg(out)
		default:
			_ = m.Respond(wire.Encode(a))
		}
	}()
}

// count is how many orders with a verb came in.
func (d *double) count(verb string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, o := range d.orders {
		if o.verb == verb {
			n++
		}
	}
	return n
}

// last decodes the newest order with a verb.
func (d *double) last(verb string, order any) wire.Order {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range slices.Backward(d.orders) {
		if o.verb == verb {
			if err := json.Unmarshal(o.order.Order, order); err != nil {
				d.t.Fatal(err)
			}
			return o.order
		}
	}
	d.t.Fatalf("no %s was received", verb)
	return wire.Order{}
}

// beats sends a beat now and every 500 ms until kill.
func (d *double) beats() {
	d.beat()
	d.wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.beat()
			case <-d.stop:
				return
			}
		}
	})
}

func (d *double) beat() {
	d.mu.Lock()
	d.seq++
	b := wire.Beat{Instance: d.req.Instance, Seq: d.seq, State: d.state, SlotsUsed: d.used, Description: d.desc}
	d.mu.Unlock()
	data := wire.Encode(b)
	if len(data) > wire.MaxBeat {
		d.t.Errorf("a beat has %d bytes", len(data))
	}
	_ = d.nc.Publish(subjects.Heartbeat(d.req.Worker), data)
	_ = d.nc.Flush()
}

// kill is kill -9: the connection is gone and nothing is said.
func (d *double) kill() {
	d.once.Do(func() {
		close(d.stop)
		d.nc.Close()
		d.wg.Wait()
	})
}

// ended reports the end of a channel and returns what is on record.
func (r *rig) ended(d *double, l wire.Lease, id uuid.UUID, o wire.Outcome) wire.Outcome {
	r.t.Helper()
	var reply wire.EndedReply
	r.must(subjects.ToCoordinator(d.req.Worker, subjects.WREnded), wire.EndedRequest{
		Instance: d.req.Instance, Tenant: l.Tenant, Lease: l.ID, Channel: id, Outcome: o, Totals: wire.Totals{Stdout: 3},
	}, &reply)
	return reply.Outcome
}

// known waits until every coordinator knows the worker: each answer comes from
// one of them by chance.
func (r *rig) known(worker string) {
	r.t.Helper()
	in := 0
	eventually(r.t, func() bool {
		if w, ok := r.worker(worker); !ok || w.State != "live" {
			in = 0
		}
		in++
		return in > 24
	})
}

// worker is how one of the coordinators sees a worker.
func (r *rig) worker(name string) (wire.Worker, bool) {
	r.t.Helper()
	var list wire.WorkerList
	r.must(subjects.Operator(subjects.OpWorkers), wire.ListRequest{}, &list)
	for _, w := range list.Workers {
		if w.Worker == name {
			return w, true
		}
	}
	return wire.Worker{}, false
}

func logLevel() zerolog.Level {
	if os.Getenv("WEFT_TEST_LOG") != "" {
		return zerolog.DebugLevel
	}
	return zerolog.WarnLevel
}
