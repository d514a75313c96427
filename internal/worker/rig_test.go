package worker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; reaching it is a failure.
const patience = time.Minute

const (
	tenant   = "default"
	workerID = "w1"
)

// rig is a NATS server, a worker on it, and doubles for its peers: a coordinator
// that answers register and ended, and a client.
type rig struct {
	t    *testing.T
	srv  *natstest.Server
	conn *natsbus.Conn // the coordinator's
	mux  *natsbus.Mux  // the client's
	w    *worker.Worker
	stop func() error // ends the worker and returns what Run did

	mu        sync.Mutex
	refuse    *wire.Error // answer to register
	unwell    bool        // ended is answered with UNAVAILABLE
	registers []wire.RegisterRequest
	beats     []wire.Beat
	ended     map[uuid.UUID][]wire.EndedRequest
	changed   chan struct{} // capacity 1
}

// settings change the worker of a rig.
type settings func(*worker.Config)

func withLimits(l worker.Limits) settings { return func(c *worker.Config) { c.Limits = l } }

// newRig starts everything and waits until the worker is ready.
func newRig(t *testing.T, opts ...settings) *rig {
	t.Helper()
	r := prepareRig(t)
	r.startWorker(opts...)
	select {
	case <-r.w.Ready():
	case <-time.After(patience):
		t.Fatal("the worker did not become ready")
	}
	return r
}

// prepareRig starts all but the worker.
func prepareRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, srv: natstest.Start(t, natstest.InProcessOnly()),
		ended: map[uuid.UUID][]wire.EndedRequest{}, changed: make(chan struct{}, 1),
	}
	r.makeLog()
	r.conn = r.connect("coordinator")
	client := r.connect("client")
	mux, err := natsbus.NewClientMux(client)
	r.ok(err)
	t.Cleanup(mux.Close)
	r.mux = mux
	r.coordinate()
	return r
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) bus() natsbus.Options {
	return natsbus.Options{
		InProcess: r.srv.InProcess(), Auth: natsbus.Auth{Token: r.srv.Token()},
		Log: zerolog.Nop(), Reconnect: 50 * time.Millisecond,
	}
}

func (r *rig) connect(name string) *natsbus.Conn {
	r.t.Helper()
	o := r.bus()
	o.Name = name
	c, err := natsbus.Connect(r.t.Context(), o)
	r.ok(err)
	r.t.Cleanup(c.Close)
	return c
}

// makeLog makes the tenant's log as a coordinator would.
func (r *rig) makeLog() {
	r.t.Helper()
	js, err := jetstream.New(r.srv.Connect(r.t))
	r.ok(err)
	_, err = js.CreateStream(r.t.Context(), jetstream.StreamConfig{
		Name: subjects.LogStream(tenant, 0), Subjects: []string{subjects.Log(tenant)},
		Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 128, MaxMsgSize: wire.MaxPayload + 512,
		MaxBytes: 1 << 30, AllowDirect: true,
		RePublish: &jetstream.RePublish{Source: subjects.Log(tenant), Destination: subjects.LogRepublish(tenant)},
	})
	r.ok(err)
}

func (r *rig) coordinate() {
	r.t.Helper()
	listen := func(subject string, h func(natsbus.Msg)) {
		_, err := r.conn.Subscribe(subject, h)
		r.ok(err)
	}
	listen(subjects.ToCoordinators(subjects.WRRegister), func(m natsbus.Msg) {
		var q wire.RegisterRequest
		err := wire.DecodeStrict(m.Data, wire.MaxOpenBody, &q)
		r.note(func() { r.registers = append(r.registers, q) })
		if refuse := r.refusal(); refuse != nil || err != nil {
			_ = m.RespondError(refuse)
			return
		}
		_ = m.Respond(wire.Encode(wire.RegisterReply{Coordinator: "double", MinVersion: 1, MaxVersion: 1}))
	})
	listen(subjects.ToCoordinators(subjects.WREnded), func(m natsbus.Msg) {
		var q wire.EndedRequest
		_ = wire.DecodeStrict(m.Data, wire.MaxControlBody, &q)
		unwell := false
		r.note(func() { r.ended[q.Channel] = append(r.ended[q.Channel], q); unwell = r.unwell })
		if unwell {
			_ = m.RespondError(wire.Errorf(wire.CodeUnavailable, "the store is away"))
			return
		}
		_ = m.Respond(wire.Encode(wire.EndedReply{Outcome: q.Outcome}))
	})
	listen(subjects.Heartbeats(), func(m natsbus.Msg) {
		var b wire.Beat
		if len(m.Data) <= wire.MaxBeat && wire.DecodeStrict(m.Data, wire.MaxBeat, &b) == nil {
			r.note(func() { r.beats = append(r.beats, b) })
		}
	})
	r.ok(r.conn.Flush(r.t.Context()))
}

func (r *rig) refusal() *wire.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refuse
}

// note changes what was seen and wakes until.
func (r *rig) note(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// until waits until what the doubles have seen satisfies ok.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	late := time.After(patience)
	for {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-late:
			r.t.Fatalf("%s: not seen in %s", what, patience)
		}
	}
}

func (r *rig) config() worker.Config {
	d, err := sandbox.NewProcess(r.t.Context(), sandbox.Config{Root: r.t.TempDir()})
	r.ok(err)
	r.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return worker.Config{
		Bus: r.bus(), ID: workerID, Plugin: "shell", Driver: d, Slots: 4,
		StateDir: r.t.TempDir(), InsecureOrders: true,
		Limits: worker.Limits{Flush: 300 * time.Millisecond},
		Log:    zerolog.New(zerolog.NewTestWriter(r.t)).Level(zerolog.InfoLevel),
	}
}

func (r *rig) startWorker(opts ...settings) {
	r.t.Helper()
	c := r.config()
	for _, o := range opts {
		o(&c)
	}
	w, err := worker.New(c)
	r.ok(err)
	r.w = w
	r.stop = run(r.t, w)
}

// run runs w; the returned function stops it and tells what Run returned.
func run(t *testing.T, w *worker.Worker) func() error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	var err error
	go func() { // ends before the test does: see the cleanup
		defer close(done)
		err = w.Run(ctx)
	}()
	stop := func() error {
		cancel()
		<-done
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// order sends an order and decodes its answer.
func (r *rig) order(verb string, order any, body []byte, reply any) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	b, err := r.conn.Request(ctx, subjects.ToWorker(workerID, verb), wire.Encode(wire.Order{Order: wire.Encode(order), Body: body}))
	if err != nil {
		return err
	}
	return wire.DecodeReply(b, reply)
}

// lease is a lease bound on the rig's worker.
type lease struct {
	head wire.OrderHead
	wire.BindReply
}

func (r *rig) head() wire.OrderHead {
	return wire.OrderHead{
		Tenant: tenant, Worker: workerID, Instance: r.w.Instance(), Lease: uuid.NewString(),
		Epoch: wire.Epoch{Incarnation: "i1", N: 1},
	}
}

func (r *rig) bindAs(h wire.OrderHead) (wire.BindReply, error) {
	r.t.Helper()
	for {
		var b wire.BindReply
		if err := r.order(subjects.WKBind, wire.BindOrder{OrderHead: h, TTLMS: 30_000}, nil, &b); err != nil || b.State == wire.BindBound {
			return b, err
		}
	}
}

func (r *rig) bind() lease {
	r.t.Helper()
	h := r.head()
	b, err := r.bindAs(h)
	r.ok(err)
	return lease{head: h, BindReply: b}
}

func (r *rig) release(l lease, outcome wire.OutcomeKind) error {
	r.t.Helper()
	var reply wire.ReleaseReply
	return r.order(subjects.WKRelease, wire.ReleaseOrder{OrderHead: l.head, Outcome: outcome}, nil, &reply)
}

// remote is the client's side of one channel.
type remote struct {
	r      *rig
	id     uuid.UUID
	lease  lease
	port   *natsbus.Port
	end    *duplex.End
	order  wire.OpenOrder
	body   []byte
	opened wire.OpenedReply
}

// draft makes the client's end of a channel and the order to open it.
func (r *rig) draft(l lease, e wire.Exec) *remote {
	r.t.Helper()
	if e.Mode == "" {
		e.Mode = wire.ModeDuplex
	}
	m := &remote{r: r, id: uuid.New(), lease: l, body: wire.Encode(e)}
	hash := wire.BodyHash(m.body)
	m.connect()
	m.order = wire.OpenOrder{
		OrderHead: l.head, Channel: m.id, Mode: e.Mode, ProviderLeaseID: l.ProviderLeaseID,
		Credit: m.credit(), Secret: wire.NewSecret(), BodySHA256: hash[:],
	}
	return m
}

func (m *remote) connect() {
	m.r.t.Helper()
	var err error
	m.port, err = m.r.mux.Open(channelOf(m))
	m.r.ok(err)
	m.end = duplex.New(duplex.Config{Side: duplex.Client, Channel: m.id, Epoch: m.lease.head.Epoch.N, Link: m.port})
	m.port.Bind(m.end)
	m.r.t.Cleanup(m.die)
}

// die ends the client's side as a kill -9 would: nothing is said.
func (m *remote) die() {
	m.end.Close()
	m.port.Close()
}

// open sends the order; the end is not started yet.
func (m *remote) open() error {
	m.r.t.Helper()
	return m.r.order(subjects.WKOpen, m.order, m.body, &m.opened)
}

// start gives the client's end its keys, as the open reply would.
func (m *remote) start() {
	g := duplex.Grant{
		Attach: 1, KeyUp: wire.KeyUp(m.order.Secret, 1), KeyDown: wire.KeyDown(m.order.Secret),
		Frames: m.opened.Credit.FrameLimit,
	}
	g.Credit[wire.Stdin] = m.opened.Credit.Stdin
	m.end.Start(g)
}

// run opens a channel for a command.
func (r *rig) run(l lease, e wire.Exec) *remote {
	r.t.Helper()
	m := r.draft(l, e)
	r.ok(m.open())
	m.start()
	return m
}

func sh(script string) wire.Exec { return wire.Exec{Argv: []string{"sh", "-c", script}} }

func piped(argv ...string) wire.Exec { return wire.Exec{Argv: argv, Stdin: wire.StdinPipe} }

// write sends stdin.
func (m *remote) write(s string) {
	m.r.t.Helper()
	ctx, cancel := context.WithTimeout(m.r.t.Context(), patience)
	defer cancel()
	if _, err := m.end.Write(ctx, wire.Stdin, []byte(s)); err != nil {
		m.r.t.Fatalf("write stdin: %v", err)
	}
}

// result is all that a channel gave.
type result struct {
	stdout, stderr []byte
	exit           wire.Exit
}

// collect reads both streams to their ends and the EXIT.
func (m *remote) collect() result {
	m.r.t.Helper()
	var res result
	var wait sync.WaitGroup
	wait.Go(func() { res.stdout = m.read(wire.Stdout) })
	wait.Go(func() { res.stderr = m.read(wire.Stderr) })
	wait.Wait()
	res.exit = m.exit()
	return res
}

func (m *remote) read(st wire.Stream) []byte {
	ctx, cancel := context.WithTimeout(m.r.t.Context(), patience)
	defer cancel()
	var all bytes.Buffer
	buf := make([]byte, 32<<10)
	for {
		n, err := m.end.Read(ctx, st, buf)
		all.Write(buf[:n])
		if err != nil {
			if !errors.Is(err, io.EOF) {
				m.r.t.Errorf("read %s after %d bytes: %v", st, all.Len(), err)
			}
			return all.Bytes()
		}
	}
}

// line reads stdout up to a newline.
func (m *remote) line() string {
	m.r.t.Helper()
	ctx, cancel := context.WithTimeout(m.r.t.Context(), patience)
	defer cancel()
	var all []byte
	var b [1]byte
	for !bytes.HasSuffix(all, []byte("\n")) {
		if _, err := m.end.Read(ctx, wire.Stdout, b[:]); err != nil {
			m.r.t.Fatalf("read a line after %q: %v", all, err)
		}
		all = append(all, b[0])
	}
	return strings.TrimSuffix(string(all), "\n")
}

func (m *remote) pid() int {
	m.r.t.Helper()
	pid, err := strconv.Atoi(m.line())
	m.r.ok(err)
	return pid
}

func (m *remote) exit() wire.Exit {
	m.r.t.Helper()
	select {
	case <-m.end.Done():
	case <-time.After(patience):
		m.r.t.Fatal("no EXIT")
	}
	x, err := m.end.Exit()
	if err != nil || x == nil {
		m.r.t.Fatalf("no EXIT: %v", err)
	}
	return *x
}

// record is the end as the coordinator was told.
func (m *remote) record() wire.EndedRequest {
	m.r.t.Helper()
	m.r.until("wr ended", func() bool { return len(m.r.ended[m.id]) > 0 })
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	return m.r.ended[m.id][0]
}

func (m *remote) request(q wire.Request) error {
	ctx, cancel := context.WithTimeout(m.r.t.Context(), patience)
	defer cancel()
	return m.end.Request(ctx, q)
}

func wantOutcome(t *testing.T, got wire.Outcome, want string) {
	t.Helper()
	if got.String() != want {
		t.Errorf("outcome %s, want %s", got, want)
	}
}

func wantCode(t *testing.T, err error, want wire.Code) {
	t.Helper()
	if wire.CodeOf(err) != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// wantGone fails if the process still runs; a zombie does not.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return
	}
	if state := string(b[bytes.LastIndexByte(b, ')')+2]); state != "Z" && state != "X" {
		t.Errorf("process %d still runs (state %s)", pid, state)
	}
}

func channelOf(m *remote) subjects.Channel {
	return subjects.Channel{Tenant: tenant, Route: m.r.w.Route(), Lease: m.lease.head.Lease, Channel: m.id.String()}
}
