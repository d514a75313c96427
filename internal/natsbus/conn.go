package natsbus

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/wire"
)

// closeFlush bounds how long Close waits for what was published.
const closeFlush = 2 * time.Second

// logEvery is the pace of messages that would otherwise flood the log.
const logEvery = 10 * time.Second

// Conn is one connection to NATS. All methods may be called from any goroutine.
type Conn struct {
	nc           *nats.Conn
	log          zerolog.Logger
	seldom       zerolog.Logger // log, at most once in logEvery
	onUp, onDown func()
	counters     counters
	closed       chan struct{} // closed by the last callback of nats.go
	callbacks    sync.WaitGroup

	mu      sync.RWMutex // held over Subscribe, so that none comes after Close
	closing bool

	waitMu  sync.Mutex
	waiting map[*pending]struct{} // requests that a disconnect ends
}

// Connect returns a connection that is up. While no server answers it tries
// again and says so in the log, until ctx ends or Options.Wait has passed:
// UNAVAILABLE. A server that refuses the credentials ends it at once:
// UNAUTHENTICATED. Options that cannot work are INVALID_ARGUMENT. The caller
// owes a Close.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Wait)
		defer cancel()
	}
	c := &Conn{
		log:    o.Log,
		seldom: o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: logEvery}),
		onUp:   o.OnUp, onDown: o.OnDown,
		closed:  make(chan struct{}),
		waiting: map[*pending]struct{}{},
	}
	opts, err := o.nats(c)
	if err != nil {
		return nil, err
	}
	pace := backoff(cmp.Or(o.Reconnect, defaultReconnect))
	for attempt := 1; ; attempt++ {
		c.nc, err = nats.Connect(o.URL, opts...)
		if err == nil {
			return c, nil
		}
		if e := refused(err); e != nil {
			return nil, e
		}
		c.seldom.Info().Err(err).Msg("waiting for the NATS server")
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", wire.Errorf(wire.CodeUnavailable,
				"no NATS server answers (%v); check the address and that the server runs", err), context.Cause(ctx))
		case <-time.After(pace(attempt)):
		}
	}
}

// refused returns the typed error for a failure that trying again will not mend.
func refused(err error) error {
	if isAuth(err) {
		return wire.Errorf(wire.CodeUnauthenticated, "the NATS server refuses the credentials; check the token, user or credentials file")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return wire.Errorf(wire.CodeUnauthenticated, "the NATS server's certificate is not trusted; check the CA file and the host name")
	}
	return nil
}

func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// Up reports whether the connection is up now.
func (c *Conn) Up() bool { return c.nc.IsConnected() }

// NATS is the connection itself, for the coordinator's JetStream.
func (c *Conn) NATS() *nats.Conn { return c.nc }

// Counters is a snapshot of what was dropped.
func (c *Conn) Counters() Counters { return c.counters.snapshot() }

// Close sends what was published, for at most 2 s, ends every subscription and
// the connection, and returns when the last callback has returned. Calling it
// again does nothing more.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if c.Up() {
		if err := c.nc.FlushTimeout(closeFlush); err != nil {
			c.log.Debug().Err(err).Msg("closing without an answer to the last flush")
		}
	}
	c.nc.Close()
	<-c.closed
	c.callbacks.Wait()
}

func (c *Conn) isClosing() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.closing
}

func (c *Conn) up(first bool) {
	if !first {
		c.counters.reconnects.Add(1)
		c.log.Info().Msg("connected to the NATS server again")
	}
	if c.onUp != nil {
		c.onUp()
	}
}

func (c *Conn) down(err error) {
	c.counters.disconnects.Add(1)
	if !c.isClosing() {
		c.log.Warn().Err(err).Msg("lost the NATS server; connecting again")
	}
	c.waitMu.Lock()
	for p := range c.waiting {
		p.cancel(errConnectionLost)
	}
	c.waitMu.Unlock()
	if c.onDown != nil {
		c.onDown()
	}
}

// asyncError takes what nats.go has nobody else to tell.
func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) && sub != nil {
		c.counters.slowConsumer.Add(1)
		dropped, _ := sub.Dropped()
		c.seldom.Warn().Str("subject", sub.Subject).Int("dropped", dropped).
			Msg("a subscription dropped messages; their senders repair it")
		return
	}
	c.seldom.Warn().Err(err).Msg("NATS")
}
