// Package faultproxy stands between a TCP client and its server and breaks their
// connections the way that networks do: late, silent, half-open, cut in the middle
// of a message, or cut between a request that was read and its answer.
//
// It changes no byte and invents none: what arrives is always a prefix of what
// was sent on that connection. A test says when something breaks, in time or in
// bytes, and keeps the seed that it drew them from.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Dir is a direction.
type Dir uint8

// Up is from the client to the server, Down back.
const (
	Up Dir = iota
	Down
)

// Flow is what becomes of the bytes of one direction.
type Flow uint8

// The flows.
const (
	Pass Flow = iota
	// Hold forwards nothing and, once the buffers are full, reads nothing: packets
	// that are dropped and sent again later. Back to Pass, everything arrives.
	Hold
	// Swallow reads and drops. A connection that lost bytes so is cut when the flow
	// is Pass again.
	Swallow
)

// Faults is what holds from now on for every connection, new ones too.
type Faults struct {
	Up, Down Flow
	Delay    time.Duration // of every byte, each way
	Refuse   bool          // new connections are closed at once
}

func (f Faults) flow(d Dir) Flow {
	if d == Up {
		return f.Up
	}
	return f.Down
}

// Proxy is one listening address in front of one server. Its methods may be
// called from any goroutine.
type Proxy struct {
	target string
	ln     net.Listener

	mu     sync.Mutex
	cond   *sync.Cond // faults, trap or pairs changed
	faults Faults
	pairs  map[*pair]struct{}
	trap   *trap
	cuts   int
	ended  bool
}

// trap cuts every connection at a byte. Guarded by Proxy.mu.
type trap struct {
	dir     Dir
	left    int64
	swallow bool          // wait for the first byte of the other direction, and drop it
	sprung  chan struct{} // closed with the cut
}

// New listens on a free loopback port; Run serves it. The caller owes a Run.
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, ln: ln, pairs: map[*pair]struct{}{}}
	p.cond = sync.NewCond(&p.mu)
	return p, nil
}

// Addr is host:port to connect to instead of the server's.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Run accepts connections until ctx ends, then cuts all and returns when nothing
// of them runs any more. The error is nil unless listening failed by itself.
func (p *Proxy) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() { p.ln.Close() })
	defer stop()
	defer p.end()
	for {
		c, err := p.ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("faultproxy: %w", err)
		case err != nil:
			continue // of that one connection
		}
		all.Go(func() { p.serve(ctx, c) })
	}
}

func (p *Proxy) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Cut()
}

func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	p.mu.Lock()
	refuse := p.faults.Refuse || p.ended
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		reset(client) // as a server that is down
		return
	}
	q := &pair{p: p, client: client, server: server}
	p.mu.Lock()
	ended := p.ended
	p.pairs[q] = struct{}{}
	p.mu.Unlock()
	if ended {
		q.cut()
	}
	q.run()
}

// reset closes without a goodbye.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it fails only on a connection that is over
	}
	c.Close()
}

// Set makes f hold.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	p.faults = f
	p.cond.Broadcast()
	p.mu.Unlock()
}

// Cut resets every connection and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cutLocked()
}

func (p *Proxy) cutLocked() int {
	n := len(p.pairs)
	for q := range p.pairs {
		q.cutLocked()
	}
	p.cuts += n
	return n
}

// Cuts counts the connections that were cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// CutAt cuts every connection once n more bytes have gone in direction d, be it in
// the middle of a message. The channel is closed then. It replaces an earlier one.
func (p *Proxy) CutAt(d Dir, n int64) <-chan struct{} { return p.set(&trap{dir: d, left: n}) }

// CutUnanswered lets n more bytes go up, drops the server's next word after that,
// and cuts: the server has read and acted, and its answer is lost.
func (p *Proxy) CutUnanswered(n int64) <-chan struct{} {
	return p.set(&trap{dir: Up, left: n, swallow: true})
}

func (p *Proxy) set(t *trap) <-chan struct{} {
	t.sprung = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
	return t.sprung
}

// pass says how many of the next n bytes of q in direction d may go on, after
// waiting for as long as they are held. It reports false if q is over.
func (p *Proxy) pass(q *pair, d Dir, n int) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !q.over && p.faults.flow(d) == Hold {
		p.cond.Wait()
	}
	switch {
	case q.over:
		return 0, false
	case p.faults.flow(d) == Swallow:
		q.torn = true
		return 0, true
	case q.torn:
		p.cuts++
		q.cutLocked()
		return 0, false
	}
	return p.spring(q, d, n)
}

// spring counts n bytes against the trap.
func (p *Proxy) spring(q *pair, d Dir, n int) (int, bool) {
	t := p.trap
	switch {
	case t == nil:
		return n, true
	case t.dir != d:
		if !t.swallow || t.left > 0 {
			return n, true
		}
		p.disarm()
		return 0, false
	case int64(n) < t.left || t.swallow:
		t.left = max(0, t.left-int64(n))
		return n, true
	}
	n = int(t.left)
	q.last = true // these n still go
	return n, true
}

// disarm cuts what the trap was for. Called with mu held.
func (p *Proxy) disarm() {
	t := p.trap
	p.trap = nil
	p.cutLocked()
	close(t.sprung)
}

// sprung ends the trap once the last bytes before it were written.
func (p *Proxy) sprung() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trap != nil {
		p.disarm()
	}
}
