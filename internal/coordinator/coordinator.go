package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Timeouts of requests that have none in Limits.
const (
	askTimeout     = 5 * time.Second
	releaseTimeout = 20 * time.Second // the grace of its commands included
	// softStop is how long requests may go on when the coordinator stops.
	softStop = 5 * time.Second
)

// Coordinator is one coordinator.
type Coordinator struct {
	cfg   Config
	ready chan struct{}
}

// New checks the configuration: INVALID_ARGUMENT. It starts nothing.
func New(cfg Config) (*Coordinator, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Coordinator{cfg: cfg, ready: make(chan struct{})}, nil
}

// Ready is closed when requests are answered: the store is loaded and the
// subscriptions are confirmed.
func (c *Coordinator) Ready() <-chan struct{} { return c.ready }

// parts is what one run consists of.
type parts struct {
	store    *store
	logs     *logs
	fleet    *fleet
	leases   *leases
	channels *channels
	service  *service
	janitor  *janitor
	keeper   *keeper
	replays  [2]*crew // of tenants, of workers
	crews    []*crew
	logAgain chan struct{}
}

// Run connects and serves until ctx is done, then lets the requests at work
// finish for a moment, and returns nil after everything it started has ended.
// It may be called once. Errors: what natsbus.Connect says of the server;
// UNAVAILABLE for a store that is incomplete; QUOTA_EXCEEDED for a server
// without room for the logs.
func (c *Coordinator) Run(ctx context.Context) error {
	log := c.cfg.Log.With().Str("coordinator", c.cfg.Name).Logger()
	again := make(chan struct{}, 1)
	requests, err := natsbus.Connect(ctx, c.options("requests", log, func() { kick(again) }, nil))
	if err != nil {
		return stopped(ctx, err)
	}
	defer requests.Close()
	p, err := c.build(ctx, requests, log)
	if err != nil {
		return stopped(ctx, err)
	}
	p.logAgain = again
	// Beats have a connection of their own, so that no flood of requests can make
	// workers look silent.
	beats, err := natsbus.Connect(ctx, c.options("beats", log, p.fleet.busUp, p.fleet.busDown))
	if err != nil {
		return stopped(ctx, err)
	}
	defer beats.Close()
	return stopped(ctx, c.serve(ctx, p, beats))
}

// stopped hides the error of a run that was asked to stop.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (c *Coordinator) options(what string, log zerolog.Logger, up, down func()) natsbus.Options {
	o := c.cfg.NATS
	o.Name = c.cfg.Name + " " + what
	o.Log = log.With().Str("connection", what).Logger()
	o.OnUp, o.OnDown = up, down
	return o
}

// build opens the store and puts the parts together. It starts nothing.
func (c *Coordinator) build(ctx context.Context, bus *natsbus.Conn, log zerolog.Logger) (*parts, error) {
	nc := bus.NATS()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	cfg := c.cfg
	cfg.Log = log
	p := &parts{}
	if p.store, err = openStore(ctx, js, cfg.Replicas, log); err != nil {
		return nil, err
	}
	p.logs = &logs{js: js, tenants: cfg.Tenants, replicas: cfg.Replicas, sizes: cfg.Limits.logSizes(), log: log}
	for _, t := range cfg.Tenants {
		if err := p.logs.ensure(ctx, t); err != nil {
			return nil, err
		}
	}
	o := &orders{nc: nc}
	p.leases = &leases{store: p.store, orders: o, limits: cfg.Limits, log: log, renewed: map[string]time.Time{}}
	p.fleet = newFleet(cfg, o, p.leases.adopted)
	p.leases.fleet = p.fleet
	p.store.leases.changed = p.leases.changed
	later := newCrew(cfg.Limits.Requests)
	p.channels = &channels{
		store: p.store, leases: p.leases, fleet: p.fleet, orders: o, logs: p.logs, limits: cfg.Limits,
		disabled: cfg.DisabledPlugins, later: later, log: log, claims: map[string]channel.Record{},
	}
	tenants, workers := newCrew(cfg.Limits.Requests), newCrew(cfg.Limits.Requests)
	for i := range p.replays {
		p.replays[i] = newCrew(min(replaysAtOnce, cfg.Limits.Requests))
	}
	p.crews = []*crew{tenants, workers, p.replays[0], p.replays[1], later}
	p.service = &service{
		nc: nc, name: cfg.Name, log: log, add: micro.AddService, tenants: map[string]bool{},
		endpoints: p.endpoints(cfg, tenants, workers),
	}
	for _, t := range cfg.Tenants {
		p.service.tenants[t] = true
	}
	p.janitor = &janitor{store: p.store, leases: p.leases, channels: p.channels, fleet: p.fleet, logs: p.logs, log: log}
	p.keeper = newKeeper(p.store, p.logs, log)
	return p, nil
}

// endpoints is every verb that is served. A verb that is not here has no
// responders, which callers are told within a millisecond.
func (p *parts) endpoints(cfg Config, tenants, workers *crew) []endpoint {
	l, ch := p.leases, p.channels
	type handler = func(context.Context, subjects.Subject, []byte) (any, error)
	var out []endpoint
	add := func(crew *crew, kind, verb, subject string, timeout time.Duration, h handler) {
		out = append(out, endpoint{name: kind + "-" + verb, subject: subject, timeout: timeout, crew: crew, handle: h})
	}
	info := func(_ context.Context, _ subjects.Subject, body []byte) (any, error) {
		if err := wire.DecodeStrict(body, wire.MaxControlBody, &struct{}{}); len(body) > 0 && err != nil {
			return nil, err
		}
		return wire.Info{Version: Version, ProtocolVersion: wire.Version, Coordinator: cfg.Name, Limits: cfg.Limits.info()}, nil
	}
	for _, e := range []struct {
		verb    string
		timeout time.Duration
		h       handler
	}{
		{subjects.APIAcquire, cfg.Limits.Bind, l.acquire},
		{subjects.APIGet, askTimeout, l.get},
		{subjects.APIList, askTimeout, l.list},
		{subjects.APIRenew, askTimeout, l.renew},
		{subjects.APIRelease, releaseTimeout, l.release},
		{subjects.APIOpen, cfg.Limits.Open, ch.open(wire.ModeDuplex)},
		{subjects.APIExecute, cfg.Limits.Open, ch.open(wire.ModeExecute)},
		{subjects.APIAttach, cfg.Limits.Open, ch.attach},
		{subjects.APIObserve, askTimeout, ch.observe},
		{subjects.APIChannel, askTimeout, ch.get},
		{subjects.APIChannels, askTimeout, ch.list},
		{subjects.APIKill, askTimeout, ch.kill},
		{subjects.APIInfo, askTimeout, info},
	} {
		add(tenants, "api", e.verb, subjects.APIs(e.verb), e.timeout, e.h)
	}
	add(p.replays[0], "rp", subjects.WRReplay, subjects.Replay("*"), askTimeout, ch.replay)
	add(tenants, "op", subjects.OpWorkers, subjects.Operator(subjects.OpWorkers), askTimeout, p.fleet.workers)
	add(tenants, "op", subjects.OpLeases, subjects.Operator(subjects.OpLeases), askTimeout, l.list)
	add(tenants, "op", subjects.OpChannels, subjects.Operator(subjects.OpChannels), askTimeout, ch.list)
	add(workers, "wr", subjects.WRRegister, subjects.ToCoordinators(subjects.WRRegister), askTimeout, p.fleet.register)
	add(workers, "wr", subjects.WRRenew, subjects.ToCoordinators(subjects.WRRenew), askTimeout, l.renewBusy)
	add(workers, "wr", subjects.WREnded, subjects.ToCoordinators(subjects.WREnded), askTimeout, ch.ended)
	add(p.replays[1], "wr", subjects.WRReplay, subjects.ToCoordinators(subjects.WRReplay), askTimeout, ch.replayOwn)
	return out
}

// serve runs the parts until ctx is done and returns when the last has ended.
func (c *Coordinator) serve(ctx context.Context, p *parts, beats *natsbus.Conn) error {
	sub, err := beats.Subscribe(subjects.Heartbeats(), func(m natsbus.Msg) { p.fleet.beat(ctx, m) })
	if err == nil {
		err = beats.Flush(ctx)
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	loaded := make(chan struct{}, 2)
	follow(ctx, &wg, p.store.leases, loaded)
	follow(ctx, &wg, p.store.channels, loaded)
	for range cap(loaded) {
		select {
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
	}
	wg.Go(func() { p.fleet.run(ctx) })
	wg.Go(func() { p.logs.run(ctx, p.logAgain) })
	wg.Go(func() { p.janitor.run(ctx) })
	wg.Go(func() { p.keeper.run(ctx) })
	up := sync.OnceFunc(func() { close(c.ready) })
	p.service.run(ctx, up)
	// The service takes no more; what it took may finish.
	hard := time.AfterFunc(softStop, func() {
		for _, crew := range p.crews {
			crew.abort()
		}
	})
	defer hard.Stop()
	for _, crew := range p.crews {
		crew.close()
	}
	return nil
}

// follow keeps a table on its bucket; loaded gets one message.
func follow[T any](ctx context.Context, wg *sync.WaitGroup, b *bucket[T], loaded chan<- struct{}) {
	once := sync.OnceFunc(func() { loaded <- struct{}{} })
	wg.Go(func() {
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
			began := time.Now()
			err := b.follow(ctx, once)
			if ctx.Err() != nil {
				return
			}
			if time.Since(began) > watchCheck {
				wait = 50 * time.Millisecond
			}
			b.cas.log.Warn().Err(err).Msg("the watch is begun again")
			if !pause(ctx, wait) {
				return
			}
		}
	})
}
