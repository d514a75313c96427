package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Client is a connection to a weft fabric in the name of one tenant. All
// methods may be called from any goroutine.
type Client struct {
	// Set once.
	opts    Options
	id      uuid.UUID // of this process's keepalives
	bus     bus
	crew    crew
	closing chan struct{} // closed when Close begins
	close   func()
	downs   atomic.Uint64 // times that the connection was lost

	mu       sync.Mutex
	closed   bool
	routes   map[string]*route
	channels map[*Channel]struct{} // that still hold something
	giveUp   *time.Timer           // runs while the connection is down
}

// Connect returns a client whose connection is up. It tries for 10 s, or until
// ctx ends if that is sooner. Errors: INVALID_ARGUMENT, UNAUTHENTICATED,
// UNAVAILABLE. The caller owes a Close.
func Connect(ctx context.Context, o Options) (*Client, error) {
	c, err := newClient(o)
	if err != nil {
		return nil, err
	}
	if c.bus, err = dial(ctx, c.opts.bus(c)); err != nil {
		return nil, typed(ctx, "connecting", err)
	}
	return c, nil
}

// newClient makes a client that has no bus yet.
func newClient(o Options) (*Client, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	c := &Client{
		opts: o, id: uuid.New(), closing: make(chan struct{}),
		routes: map[string]*route{}, channels: map[*Channel]struct{}{},
	}
	c.close = sync.OnceFunc(c.shut)
	return c, nil
}

// Tenant is whose leases this client sees.
func (c *Client) Tenant() string { return c.opts.Tenant }

// Close ends the client: open channels end here with outcome unknown (what
// becomes of their commands is for each OnDisconnect), leases are no longer
// renewed, the connection is closed. It waits for writers that were given with
// WithStdout and WithStderr to return. Calling it again does nothing.
func (c *Client) Close() { c.close() }

func (c *Client) shut() {
	close(c.closing)
	c.mu.Lock()
	c.closed = true
	if c.giveUp != nil {
		c.giveUp.Stop()
	}
	c.mu.Unlock()
	for _, ch := range c.held() {
		ch.end.Fail(endError(CodeUnavailable, LayerTransport, Outcome{}, "the client was closed before the command ended"))
	}
	c.crew.stop()
	for _, ch := range c.held() {
		ch.free()
	}
	c.bus.Close()
}

// held is the channels that still hold something.
func (c *Client) held() []*Channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*Channel, 0, len(c.channels))
	for ch := range c.channels {
		out = append(out, ch)
	}
	return out
}

func (c *Client) onUp() {
	c.mu.Lock()
	if c.giveUp != nil {
		c.giveUp.Stop()
		c.giveUp = nil
	}
	c.mu.Unlock()
	if c.downs.Load() > 0 {
		c.notify(Notice{Kind: ConnectionBack, Text: "connected to the NATS server again"})
	}
}

func (c *Client) onDown() {
	c.downs.Add(1)
	c.mu.Lock()
	closed := c.closed
	if !closed && c.opts.GiveUpAfter > 0 && c.giveUp == nil {
		c.giveUp = time.AfterFunc(c.opts.GiveUpAfter, c.abandon)
	}
	c.mu.Unlock()
	if !closed {
		c.notify(Notice{Kind: ConnectionLost, Text: "lost the connection to the NATS server; connecting again"})
	}
}

// abandon ends every channel because the connection was down for too long.
func (c *Client) abandon() {
	for _, ch := range c.held() {
		ch.end.Fail(endError(CodeUnavailable, LayerTransport, Outcome{},
			"the connection to the NATS server has been down for %s; how the command ended is not known", c.opts.GiveUpAfter))
	}
}

// notify calls the user's callback; its panics end there.
func (c *Client) notify(n Notice) {
	if c.opts.OnNotice == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			c.opts.Log.Error().Str("panic", fmt.Sprint(p)).Msg("OnNotice panicked")
		}
	}()
	c.opts.OnNotice(n)
}

// Workers lists the workers of the fabric; an operator's call.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	var reply wire.WorkerList
	if err := c.callOn(ctx, subjects.Operator(subjects.OpWorkers), struct{}{}, &reply); err != nil {
		return nil, err
	}
	return reply.Workers, nil
}

// Info says which coordinator answers, its version, and every limit in force.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var reply Info
	err := c.call(ctx, subjects.APIInfo, struct{}{}, &reply)
	return reply, err
}

// WorkerInfo is what an operator sees of a worker.
type WorkerInfo = wire.Worker

// Info is what a coordinator says of itself.
type Info = wire.Info

// call asks the coordinators: one verb of the tenant's API, bounded by
// RequestTimeout.
func (c *Client) call(ctx context.Context, verb string, req, reply any) error {
	return c.callOn(ctx, subjects.API(c.opts.Tenant, verb), req, reply)
}

func (c *Client) callOn(ctx context.Context, subject string, req, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	return c.exchange(ctx, subject, wire.Encode(req), attemptTimeout, reply)
}

// attemptTimeout is how long one copy of a request may be unanswered before it
// is sent again: every request names its own idempotency key.
const attemptTimeout = 4 * time.Second

// exchange sends one request until it is answered or ctx ends, again when an
// attempt was not answered for so long, and reads the answer.
func (c *Client) exchange(ctx context.Context, subject string, body []byte, attempt time.Duration, reply any) error {
	for {
		downs := c.downs.Load()
		actx, cancel := context.WithTimeout(ctx, attempt)
		data, err := c.bus.Request(actx, subject, body)
		cancel()
		if err == nil {
			return wire.DecodeReply(data, reply)
		}
		if ctx.Err() != nil {
			return typed(ctx, "the request", context.Cause(ctx))
		}
		if !c.repeats(err, downs) || !c.pause(ctx, repeatPause) {
			return typed(ctx, "the request", err)
		}
	}
}

// repeats reports whether err says that an answer was lost on the way, and not
// that there is nobody to answer.
func (c *Client) repeats(err error, downs uint64) bool {
	switch {
	case errors.Is(err, natsbus.ErrNoResponders):
		return false
	case errors.Is(err, context.DeadlineExceeded):
		return true
	}
	return wire.CodeOf(err) == CodeUnavailable && (!c.bus.Up() || c.downs.Load() != downs)
}

const repeatPause = 200 * time.Millisecond

// pause waits d ± 20 %; false when ctx or the client ended before.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.closing:
	}
	return false
}

// jitter is d ± 20 %.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}
