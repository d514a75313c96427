package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/faultproxy"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/worker"
)

// rough is a fabric whose parts reach the server over links that break: one for
// the clients, one for the worker.
type rough struct {
	t        *testing.T
	srv      *natstest.Server
	toClient *faultproxy.Proxy
	toWorker *faultproxy.Proxy
	rng      *rand.Rand

	mu    sync.Mutex
	stops []func() // of the coordinators
}

// newRough starts it with n coordinators.
func newRough(t *testing.T, n int) *rough {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &rough{t: t, srv: natstest.Start(t), rng: rand.New(rand.NewPCG(seed, 1))}
	u, err := url.Parse(r.srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	r.toClient, r.toWorker = r.proxy(u.Host), r.proxy(u.Host)
	for range n {
		r.coordinator()
	}
	d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	w, err := worker.New(worker.Config{
		Bus: r.bus("nats://" + r.toWorker.Addr()), ID: "w1", Plugin: "p", Driver: d, Slots: 8,
		StateDir: filepath.Join(t.TempDir(), "state"), InsecureOrders: true, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.run("worker", w.Run, w.Ready())
	return r
}

func (r *rough) bus(url string) natsbus.Options {
	return natsbus.Options{URL: url, Auth: natsbus.Auth{Token: r.srv.Token()}, Reconnect: 100 * time.Millisecond}
}

func (r *rough) proxy(target string) *faultproxy.Proxy {
	r.t.Helper()
	p, err := faultproxy.New(target)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run("proxy", p.Run, nil)
	return p
}

func (r *rough) coordinator() {
	r.t.Helper()
	c, err := coordinator.New(coordinator.Config{NATS: r.bus(r.srv.URL()), Log: zerolog.Nop()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.stops = append(r.stops, r.run("coordinator", c.Run, c.Ready()))
}

// run runs a part until the end of the test or the call of stop.
func (r *rough) run(what string, run func(context.Context) error, ready <-chan struct{}) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			r.t.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() { cancel(); <-ended }
	r.t.Cleanup(stop)
	if ready != nil {
		select {
		case <-ready:
		case <-ended:
			r.t.Fatalf("the %s ended before it was ready", what)
		case <-time.After(bound):
			r.t.Fatalf("the %s is not ready", what)
		}
	}
	return stop
}

func (r *rough) connect(o client.Options) *client.Client {
	r.t.Helper()
	o.URL, o.Auth.Token = "nats://"+r.toClient.Addr(), r.srv.Token()
	c, err := client.Connect(r.t.Context(), o)
	if err != nil {
		r.t.Fatalf("Connect: %v", err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// lease is one on a worker that has registered.
func (r *rough) lease(o client.Options) *client.Lease {
	r.t.Helper()
	c := r.connect(o)
	for {
		// A coordinator that has not heard of the worker yet may answer.
		l, err := c.AcquireLease(r.t.Context(), client.AcquireOptions{Environment: r.t.Name()})
		if err == nil {
			return l
		}
		if client.CodeOf(err) != client.CodeNoWorker {
			r.t.Fatalf("AcquireLease: %v", err)
		}
		wait(r.t, 50*time.Millisecond)
	}
}

// echoed sends size random bytes through cat and wants them back. meanwhile runs
// beside it; what it is given is closed when everything has come.
func (r *rough) echoed(l *client.Lease, size int64, meanwhile func(ch *client.Channel, done <-chan struct{})) {
	r.t.Helper()
	ch := open(r.t, l, piped("cat"))
	done := make(chan struct{})
	sent, got := sha256.New(), sha256.New()
	var both sync.WaitGroup
	both.Go(func() {
		defer ch.CloseWrite()
		src := rand.NewChaCha8([32]byte{7})
		if n, err := io.CopyN(io.MultiWriter(ch, sent), src, size); err != nil {
			r.t.Errorf("after %d bytes: %v", n, err)
		}
	})
	both.Go(func() {
		defer close(done)
		if n, err := io.Copy(got, ch); err != nil || n != size {
			r.t.Errorf("%d of %d bytes came back: %v", n, size, err)
		}
	})
	meanwhile(ch, done)
	both.Wait()
	if string(got.Sum(nil)) != string(sent.Sum(nil)) {
		r.t.Error("other bytes came back")
	}
	ends(r.t, ch, "exited(0)")
}

// lockedBuffer is a bytes.Buffer that may be looked at while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Len()
}

func (b *lockedBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.b.Bytes())
}
