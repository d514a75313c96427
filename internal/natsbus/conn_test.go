package natsbus_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestConnectRefusals(t *testing.T) {
	srv := natstest.Start(t)
	with := func(change func(*natsbus.Options)) natsbus.Options {
		o := options(srv)
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		o    natsbus.Options
		want wire.Code
	}{
		{"wrong token", with(func(o *natsbus.Options) { o.Auth.Token = "wrong" }), wire.CodeUnauthenticated},
		{"no token", with(func(o *natsbus.Options) { o.Auth.Token = "" }), wire.CodeUnauthenticated},
		{"no server named", with(func(o *natsbus.Options) { o.URL = "" }), wire.CodeInvalidArgument},
		{"two servers named", with(func(o *natsbus.Options) { o.InProcess = srv.InProcess() }), wire.CodeInvalidArgument},
		{"not a URL", with(func(o *natsbus.Options) { o.URL = "nats://user:secret@%zz" }), wire.CodeInvalidArgument},
		{"missing file", with(func(o *natsbus.Options) { o.Auth.CredsFile = "/nonexistent" }), wire.CodeInvalidArgument},
		{"key without certificate", with(func(o *natsbus.Options) { o.TLS.Key = "/dev/null" }), wire.CodeInvalidArgument},
		{"empty nkey file", with(func(o *natsbus.Options) { o.Auth.NKeyFile = "/dev/null" }), wire.CodeInvalidArgument},
		{"foreign inbox", with(func(o *natsbus.Options) { o.InboxPrefix = "$JS" }), wire.CodeInvalidArgument},
		{"nobody listens", with(func(o *natsbus.Options) { o.URL, o.Wait = "127.0.0.1:1", 1 }), wire.CodeUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := natsbus.Connect(t.Context(), c.o)
			if wire.CodeOf(err) != c.want {
				t.Errorf("err = %v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells the password: %v", err)
			}
			if conn != nil {
				conn.Close()
			}
		})
	}
}

func TestConnectInProcess(t *testing.T) {
	srv := natstest.Start(t, natstest.InProcessOnly())
	o := options(srv)
	o.URL, o.InProcess = "", srv.InProcess()
	c := connect(t, o)
	if err := c.Flush(t.Context()); err != nil || !c.Up() {
		t.Errorf("Flush: %v, Up: %t", err, c.Up())
	}
}

func TestF027_WaitsForTheServerAndSaysSo(t *testing.T) {
	srv := natstest.Start(t)
	srv.Kill()
	log := newLines()
	up, down := make(chan struct{}, 9), make(chan struct{}, 9)
	o := options(srv)
	o.Log = zerolog.New(log)
	o.OnUp, o.OnDown = func() { up <- struct{}{} }, func() { down <- struct{}{} }
	type result struct {
		c   *natsbus.Conn
		err error
	}
	connected := make(chan result, 1)
	go func() {
		c, err := natsbus.Connect(t.Context(), o)
		connected <- result{c, err}
	}()
	if line := receive(t, log.ch); !strings.Contains(line, "waiting for the NATS server") {
		t.Errorf("the log says %q", line)
	}
	srv.Restart(t, true)
	r := receive(t, connected)
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.c.Close()
	receive(t, up)
	srv.Kill()
	receive(t, down)
	if r.c.Up() {
		t.Error("Up while the server is down")
	}
	srv.Restart(t, true)
	receive(t, up)
	if !r.c.Up() {
		t.Error("not Up after the server is back")
	}
	if !strings.Contains(log.String(), "lost the NATS server") || !strings.Contains(log.String(), "again") {
		t.Errorf("the log does not tell what happened:\n%s", log)
	}
	if strings.Contains(log.String(), srv.Token()) {
		t.Error("the log tells the token")
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	srv := natstest.Start(t)
	srv.Kill()
	ctx, cancel := context.WithCancel(t.Context())
	log := newLines()
	o := options(srv)
	o.Log = zerolog.New(log)
	done := make(chan error, 1)
	go func() {
		_, err := natsbus.Connect(ctx, o)
		done <- err
	}()
	receive(t, log.ch)
	cancel()
	err := receive(t, done)
	if wire.CodeOf(err) != wire.CodeUnavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want UNAVAILABLE and the context's", err)
	}
}

func TestReconnectCarriesOn(t *testing.T) {
	srv := natstest.Start(t)
	makeLog(t, srv.Connect(t), tenant, 64<<20)
	up, down := make(chan struct{}, 9), make(chan struct{}, 9)
	o := options(srv)
	o.OnUp, o.OnDown = func() { up <- struct{}{} }, func() { down <- struct{}{} }
	cc, wc := connect(t, o), connect(t, o)
	receive(t, up)
	receive(t, up)
	client, worker := clientMux(t, cc), workerMux(t, wc, nil)
	ch := newChannel()
	onClient, onWorker := newRecorder(), newRecorder()
	u, d := open(t, client, ch), open(t, worker, ch)
	u.Bind(onClient)
	d.Bind(onWorker)

	srv.Kill()
	receive(t, down)
	receive(t, down)
	for what, err := range map[string]error{
		"Store": u.Store(1, []byte("x")), "Control": u.Control([]byte("x")),
		"Publish": cc.Publish(subjects.Heartbeat("w1"), nil), "Flush": cc.Flush(t.Context()),
	} {
		if wire.CodeOf(err) != wire.CodeUnavailable {
			t.Errorf("%s while down: %v, want UNAVAILABLE", what, err)
		}
	}
	if _, err := cc.Request(t.Context(), subjects.API(tenant, subjects.APIInfo), nil); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Request while down: %v, want UNAVAILABLE", err)
	}
	// A port opened meanwhile works afterwards too.
	ch2 := newChannel()
	on2 := newRecorder()
	u2, d2 := open(t, client, ch2), open(t, worker, ch2)
	u2.Bind(on2)
	d2.Bind(newRecorder())

	srv.Restart(t, true)
	receive(t, up)
	receive(t, up)
	for _, c := range []*natsbus.Conn{cc, wc} {
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.Counters(); got.Reconnects != 1 || got.Disconnects != 1 {
			t.Errorf("counted %d reconnects, %d disconnects", got.Reconnects, got.Disconnects)
		}
	}
	store(t, d, 3, "down")
	onClient.want(t, call{kind: "frame", data: "down"})
	if got := onWorker.next(t); got.kind != "stored" || got.seq != 3 {
		t.Errorf("the worker got %+v, want stored 3", got)
	}
	store(t, u, 4, "up")
	onWorker.want(t, call{kind: "frame", data: "up"})
	store(t, d2, 1, "new")
	on2.want(t, call{kind: "frame", data: "new"})
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	p := newPair(t)
	quiet := goleak.IgnoreCurrent()
	cc, wc := connect(t, options(p.srv)), connect(t, options(p.srv))
	client, worker := clientMux(t, cc), workerMux(t, wc, nil)
	sub, err := cc.Subscribe(subjects.Heartbeats(), func(natsbus.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	ch := newChannel()
	u := open(t, client, ch)
	open(t, worker, ch)
	store(t, u, 1, "x")
	sub.Close()
	client.Close()
	client.Close()
	if _, err := client.Open(newChannel()); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Open after Close: %v, want UNAVAILABLE", err)
	}
	cc.Close()
	cc.Close()
	// The other way round: the connection first.
	wc.Close()
	worker.Close()
	if _, err := cc.Subscribe(subjects.Heartbeats(), func(natsbus.Msg) {}); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Subscribe after Close: %v, want UNAVAILABLE", err)
	}
	if err := u.Store(2, nil); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Store after Close: %v, want UNAVAILABLE", err)
	}
	goleak.VerifyNone(t, quiet)
}

func TestCloseSendsWhatWasPublished(t *testing.T) {
	srv := natstest.Start(t)
	in := connect(t, options(srv))
	got := make(chan string, 1000)
	if _, err := in.Subscribe(subjects.Heartbeats(), func(m natsbus.Msg) { got <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := in.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := connect(t, options(srv))
	for range 500 {
		if err := out.Publish(subjects.Heartbeat("w1"), []byte("goodbye")); err != nil {
			t.Fatal(err)
		}
	}
	out.Close()
	for range 500 {
		receive(t, got)
	}
}

func TestCloseWaitsForHandlers(t *testing.T) {
	srv := natstest.Start(t)
	c := connect(t, options(srv))
	closed := c.NATS().StatusChanged(nats.CLOSED)
	entered := make(chan struct{})
	var left atomic.Bool
	if _, err := c.Subscribe(subjects.Heartbeats(), func(natsbus.Msg) {
		close(entered)
		<-closed
		for range 1000 {
			runtime.Gosched() // Close would be through by now if it did not wait
		}
		left.Store(true)
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(subjects.Heartbeat("w1"), nil); err != nil {
		t.Fatal(err)
	}
	receive(t, entered)
	c.Close()
	if !left.Load() {
		t.Error("Close returned while a handler ran")
	}
}

// freezer is a TCP proxy that can stop passing bytes without closing anything.
type freezer struct {
	l      net.Listener
	mu     sync.RWMutex // held for writing while frozen
	wg     sync.WaitGroup
	closes chan struct{}
}

func newFreezer(t *testing.T, to string) *freezer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{l: l, closes: make(chan struct{})}
	f.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				return
			}
			f.wg.Go(func() { f.pass(in, out) })
			f.wg.Go(func() { f.pass(out, in) })
			f.wg.Go(func() { <-f.closes; _, _ = in.Close(), out.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(f.closes)
		f.wg.Wait()
	})
	return f
}

func (f *freezer) pass(from io.Reader, to io.Writer) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		f.mu.RLock()
		_, werr := to.Write(b[:n])
		f.mu.RUnlock()
		if err != nil || werr != nil {
			return
		}
	}
}

func TestHalfOpenLinkIsNoticed(t *testing.T) {
	srv := natstest.Start(t)
	f := newFreezer(t, strings.TrimPrefix(srv.URL(), "nats://"))
	down, up := make(chan time.Time, 9), make(chan struct{}, 9)
	o := options(srv)
	o.URL, o.Ping = "nats://"+f.l.Addr().String(), 50*time.Millisecond
	o.OnDown, o.OnUp = func() { down <- time.Now() }, func() { up <- struct{}{} }
	connect(t, o)
	receive(t, up)
	f.mu.Lock()
	frozen := time.Now()
	took := receive(t, down).Sub(frozen)
	f.mu.Unlock()
	// Two unanswered pings, the interval before them, and a slow machine.
	if took > 20*o.Ping {
		t.Errorf("noticed after %v with a ping interval of %v", took, o.Ping)
	}
	receive(t, up)
}
