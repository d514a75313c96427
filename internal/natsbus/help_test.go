package natsbus_test

import (
	"bytes"
	"encoding/hex"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
)

const patience = 10 * time.Second

func options(srv *natstest.Server) natsbus.Options {
	return natsbus.Options{
		URL: srv.URL(), Auth: natsbus.Auth{Token: srv.Token()},
		Log: zerolog.Nop(), Reconnect: 20 * time.Millisecond,
	}
}

func connect(t testing.TB, o natsbus.Options) *natsbus.Conn {
	t.Helper()
	c, err := natsbus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// makeLog makes a tenant's log stream the way coordinators do.
func makeLog(t testing.TB, nc *nats.Conn, tenant string, maxBytes int64) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.LogStream(tenant, 0), Subjects: []string{subjects.Log(tenant)},
		Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, MaxBytes: maxBytes,
		MaxMsgsPerSubject: 128, MaxMsgSize: 64<<10 + 512, MaxConsumers: 1000, DenyDelete: true,
		PersistMode: jetstream.AsyncPersistMode,
		RePublish:   &jetstream.RePublish{Source: subjects.Log(tenant), Destination: subjects.LogRepublish(tenant)},
	})
	if err != nil {
		t.Fatal(err)
	}
}

const (
	tenant = "t1"
	route  = "route-a"
)

func newChannel() subjects.Channel {
	return subjects.Channel{Tenant: tenant, Route: route, Lease: uuid.NewString(), Channel: uuid.NewString()}
}

// call is one call of a Handler.
type call struct {
	kind      string // frame, control, stored, refused
	data      string
	seq       uint64
	streamSeq uint64
	why       duplex.RefuseReason
}

// recorder is a Handler that tells its calls. It buffers enough for a test.
type recorder struct{ calls chan call }

func newRecorder() *recorder { return &recorder{calls: make(chan call, 10_000)} }

func (r *recorder) Frame(b []byte)          { r.calls <- call{kind: "frame", data: string(b)} }
func (r *recorder) ControlMessage(b []byte) { r.calls <- call{kind: "control", data: string(b)} }
func (r *recorder) Stored(seq, streamSeq uint64) {
	r.calls <- call{kind: "stored", seq: seq, streamSeq: streamSeq}
}
func (r *recorder) Refused(seq uint64, why duplex.RefuseReason) {
	r.calls <- call{kind: "refused", seq: seq, why: why}
}

func (r *recorder) next(t testing.TB) call {
	t.Helper()
	return receive(t, r.calls)
}

func (r *recorder) want(t testing.TB, want call) {
	t.Helper()
	if got := r.next(t); got != want {
		t.Fatalf("handler got %s, want %s", show(got), show(want))
	}
}

func show(c call) string {
	if len(c.data) > 40 {
		c.data = hex.EncodeToString([]byte(c.data[:20])) + "…"
	}
	return c.kind + " " + c.data
}

func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came in time")
		panic("unreachable")
	}
}

// pair is one channel between a client and a worker, each with a connection of
// its own.
type pair struct {
	srv                  *natstest.Server
	clientConn, workConn *natsbus.Conn
	client, worker       *natsbus.Mux
	up, down             *natsbus.Port // of the client, of the worker
	ch                   subjects.Channel
	onClient, onWorker   *recorder
}

func newPair(t testing.TB) *pair {
	t.Helper()
	srv := natstest.Start(t)
	makeLog(t, srv.Connect(t), tenant, 64<<20)
	p := &pair{srv: srv, ch: newChannel(), onClient: newRecorder(), onWorker: newRecorder()}
	p.clientConn, p.workConn = connect(t, options(srv)), connect(t, options(srv))
	p.client, p.worker = clientMux(t, p.clientConn), workerMux(t, p.workConn, nil)
	p.down = open(t, p.worker, p.ch)
	p.up = open(t, p.client, p.ch)
	p.down.Bind(p.onWorker)
	p.up.Bind(p.onClient)
	p.flush(t)
	return p
}

func (p *pair) flush(t testing.TB) {
	t.Helper()
	for _, c := range []*natsbus.Conn{p.clientConn, p.workConn} {
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func clientMux(t testing.TB, c *natsbus.Conn) *natsbus.Mux {
	t.Helper()
	m, err := natsbus.NewClientMux(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func workerMux(t testing.TB, c *natsbus.Conn, unknown natsbus.UnknownFunc) *natsbus.Mux {
	t.Helper()
	m, err := natsbus.NewWorkerMux(c, route, unknown)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func open(t testing.TB, m *natsbus.Mux, ch subjects.Channel) *natsbus.Port {
	t.Helper()
	p, err := m.Open(ch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func store(t testing.TB, p *natsbus.Port, seq uint64, frame string) {
	t.Helper()
	if err := p.Store(seq, []byte(frame)); err != nil {
		t.Fatal(err)
	}
}

// lines is a log writer that tells each line.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
	ch  chan string
}

func newLines() *lines { return &lines{ch: make(chan string, 1000)} }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	select {
	case l.ch <- string(b):
	default:
	}
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
