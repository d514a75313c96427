package faultproxy_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it reads and counts it.
type echo struct {
	ln   net.Listener
	read atomic.Int64
	done chan struct{}
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{ln: ln, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					e.read.Add(int64(n))
					if _, werr := c.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-e.done })
	return e
}

func start(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

// over wants the connection to end, and returns what came before.
func over(t *testing.T, c net.Conn) []byte {
	t.Helper()
	b, err := io.ReadAll(c)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatal("the connection does not end")
	}
	return b
}

func TestPassesEverything(t *testing.T) {
	p := start(t, newEcho(t).ln.Addr().String())
	c := dial(t, p)
	data := bytes.Repeat([]byte("weft"), 1<<18)
	go func() { _, _ = c.Write(data) }() // what fails shows in what comes back
	receive(t, c, data)
}

func TestDelay(t *testing.T) {
	p := start(t, newEcho(t).ln.Addr().String())
	p.Set(faultproxy.Faults{Delay: 50 * time.Millisecond})
	c := dial(t, p)
	began := time.Now()
	send(t, c, []byte("x"))
	receive(t, c, []byte("x"))
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("there and back in %v", d)
	}
}

func TestHold(t *testing.T) {
	e := newEcho(t)
	p := start(t, e.ln.Addr().String())
	c := dial(t, p)
	send(t, c, []byte("a"))
	receive(t, c, []byte("a"))
	p.Set(faultproxy.Faults{Up: faultproxy.Hold, Down: faultproxy.Hold})
	send(t, c, []byte("held"))
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 8)); err == nil || e.read.Load() != 1 {
		t.Errorf("%d bytes came back, the server has read %d", n, e.read.Load())
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	p.Set(faultproxy.Faults{})
	receive(t, c, []byte("held"))
	if p.Cuts() != 0 {
		t.Errorf("%d cuts", p.Cuts())
	}
}

func TestSwallow(t *testing.T) {
	e := newEcho(t)
	p := start(t, e.ln.Addr().String())
	c := dial(t, p)
	send(t, c, []byte("a"))
	receive(t, c, []byte("a"))
	p.Set(faultproxy.Faults{Down: faultproxy.Swallow})
	send(t, c, []byte("b"))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for e.read.Load() < 2 {
		<-tick.C
	}
	p.Set(faultproxy.Faults{})
	// The first byte that would come after a hole ends the connection.
	_, _ = c.Write([]byte("c"))
	if got := over(t, c); bytes.ContainsAny(got, "c") {
		t.Errorf("%q came over a hole", got)
	}
}

func TestCutAt(t *testing.T) {
	for _, n := range []int64{1, 999, 70_000} {
		p := start(t, newEcho(t).ln.Addr().String())
		c := dial(t, p)
		send(t, c, []byte("warm"))
		receive(t, c, []byte("warm"))
		cut := p.CutAt(faultproxy.Down, n)
		go func() { _, _ = c.Write(make([]byte, 100_000)) }() // it fails when the cut comes
		if got := int64(len(over(t, c))); got > n {
			t.Errorf("%d bytes came, %d may", got, n)
		}
		<-cut
		if p.Cuts() != 1 {
			t.Errorf("%d cuts", p.Cuts())
		}
		c = dial(t, p)
		send(t, c, []byte("again"))
		receive(t, c, []byte("again"))
	}
}

func TestCutUnanswered(t *testing.T) {
	e := newEcho(t)
	p := start(t, e.ln.Addr().String())
	c := dial(t, p)
	cut := p.CutUnanswered(5)
	send(t, c, []byte("hello"))
	if got := over(t, c); len(got) != 0 {
		t.Errorf("it was answered: %q", got)
	}
	<-cut
	if e.read.Load() != 5 {
		t.Errorf("the server has read %d bytes", e.read.Load())
	}
}

func TestCutAndRefuse(t *testing.T) {
	p := start(t, newEcho(t).ln.Addr().String())
	c := dial(t, p)
	send(t, c, []byte("x"))
	receive(t, c, []byte("x"))
	if n := p.Cut(); n != 1 {
		t.Errorf("%d connections were cut", n)
	}
	over(t, c)
	p.Set(faultproxy.Faults{Refuse: true})
	refused(t, p)
	p.Set(faultproxy.Faults{})
	c = dial(t, p)
	send(t, c, []byte("y"))
	receive(t, c, []byte("y"))
}

// A server that is down is a connection that ends at once.
func TestServerDown(t *testing.T) {
	e := newEcho(t)
	addr := e.ln.Addr().String()
	e.ln.Close()
	refused(t, start(t, addr))
}

// refused wants a connection that ends at once, perhaps before it is known to be there.
func refused(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return
	}
	defer c.Close()
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}
