package faultproxy

import (
	"net"
	"sync"
	"time"
)

// Sizes of a direction's buffer: how much is under way while it is late or held.
const (
	chunkSize = 16 << 10
	chunks    = 64
)

// pair is one connection with its other half.
type pair struct {
	p              *Proxy
	client, server net.Conn

	// Guarded by p.mu.
	over bool // cut
	torn bool // bytes of it were dropped
	last bool // the trap springs when the bytes under way are written
}

// chunk is bytes and when they may arrive.
type chunk struct {
	data []byte
	due  time.Time
}

func (q *pair) cut() {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.cutLocked()
}

func (q *pair) cutLocked() {
	if q.over {
		return
	}
	q.over = true
	delete(q.p.pairs, q)
	reset(q.client)
	reset(q.server)
	q.p.cond.Broadcast()
}

// run copies both ways until either side or the proxy ends the connection.
func (q *pair) run() {
	var both sync.WaitGroup
	both.Go(func() { q.copy(Up, q.client, q.server) })
	both.Go(func() { q.copy(Down, q.server, q.client) })
	both.Wait()
}

// copy is one direction. The reader is ahead of the writer, so that a delay does
// not limit the rate.
func (q *pair) copy(d Dir, from, to net.Conn) {
	under := make(chan chunk, chunks)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(under)
		for {
			buf := make([]byte, chunkSize)
			n, err := from.Read(buf)
			if n > 0 {
				under <- chunk{buf[:n], time.Now().Add(q.p.delay())}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range under {
		if wait := time.Until(c.due); wait > 0 {
			time.Sleep(wait)
		}
		if !q.write(d, to, c.data) {
			break
		}
	}
	// Whoever says goodbye, or whatever broke: both halves go.
	q.cut()
	for range under { // the reader may be waiting for room
	}
	reader.Wait()
}

// write writes what may go; false ends the connection.
func (q *pair) write(d Dir, to net.Conn, data []byte) bool {
	n, ok := q.p.pass(q, d, len(data))
	if !ok || n == 0 {
		return ok && !q.springs()
	}
	if _, err := to.Write(data[:n]); err != nil {
		return false
	}
	return !q.springs()
}

// springs ends the trap if the bytes just written were the last before it.
func (q *pair) springs() bool {
	q.p.mu.Lock()
	last := q.last
	q.p.mu.Unlock()
	if last {
		q.p.sprung()
	}
	return last
}

func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.Delay
}
