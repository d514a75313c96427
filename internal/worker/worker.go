package worker

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Bounds of a stop, beside Limits.Flush.
const (
	deadBound    = 30 * time.Second // for every command's tree to die
	destroyBound = 10 * time.Second // for the sandboxes
	goodbyeBound = 2 * time.Second
)

// Worker is one instance of a worker.
type Worker struct {
	// Set once by New.
	cfg      Config
	log      zerolog.Logger
	instance string
	route    string
	table    *table
	buffers  *sync.Pool
	spillDir string
	spills   *budget // of all spill files
	news     *announcer
	running  atomic.Bool

	// Set by Run before anything that uses them starts.
	conn *natsbus.Conn
	mux  *natsbus.Mux
	bus  atomic.Pointer[natsbus.Conn] // conn, for those who may ask before

	upSince atomic.Pointer[time.Time] // of conn; nil while it is down
	tasks   sync.WaitGroup            // orders being carried out
	lives   sync.WaitGroup            // channels not forgotten
}

// New makes a worker that Run starts. Errors: INVALID_ARGUMENT for a
// configuration that cannot work, UNAUTHENTICATED without Config.InsecureOrders,
// or a state directory that cannot be used.
func New(cfg Config) (*Worker, error) {
	if cfg.Driver != nil {
		cfg.Provider = cmp.Or(cfg.Provider, cfg.Driver.Name())
	}
	cfg.Limits = cfg.Limits.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	route, err := loadRoute(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	dir, err := makeSpillDir(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, instance: uuid.NewString(), route: route, table: newTable(cfg),
		spillDir: dir, spills: newBudget(cfg.Limits.SpillWorker, nil),
		buffers: &sync.Pool{New: func() any {
			b := make([]byte, wire.MaxFrame)
			return &b
		}},
	}
	w.log = cfg.Log.With().Str("part", "worker").Str("worker", cfg.ID).Str("instance", w.instance).Logger()
	w.news = newAnnouncer(w)
	return w, nil
}

// Ready is closed when the worker is registered, its first beat was sent, and
// every order sent from then on reaches it.
func (w *Worker) Ready() <-chan struct{} { return w.news.ready }

// Instance is this run's id, Route its token in tenants' subjects.
func (w *Worker) Instance() string { return w.instance }

// Route is the worker's token in the subjects that tenants see.
func (w *Worker) Route() string { return w.route }

// Stats is what the worker holds now.
func (w *Worker) Stats() Stats {
	s := w.table.stats()
	s.Spilled = w.cfg.Limits.SpillWorker - w.spills.free.Load()
	if c := w.bus.Load(); c != nil {
		s.Bus = c.Counters()
	}
	return s
}

// Run serves until ctx ends (nil) or the worker cannot go on: CONFLICT when
// another instance holds the worker's id, UNSUPPORTED_VERSION or another refusal
// of its description, UNAUTHENTICATED by NATS. Before it returns, every command
// has ended and every sandbox is destroyed. It can be called once.
func (w *Worker) Run(ctx context.Context) error {
	if w.running.Swap(true) {
		return wire.Errorf(wire.CodeInternal, "a worker runs once; make a new one")
	}
	conn, err := natsbus.Connect(ctx, w.options("worker "+w.cfg.ID, w.up, w.down))
	if err != nil {
		return stopped(ctx, err)
	}
	defer conn.Close()
	w.bus.Store(conn)
	beats, err := natsbus.Connect(ctx, w.options("beats of worker "+w.cfg.ID, nil, nil))
	if err != nil {
		return stopped(ctx, err)
	}
	defer beats.Close()
	mux, err := natsbus.NewWorkerMux(conn, w.route, nil)
	if err != nil {
		return err
	}
	defer mux.Close()
	w.conn, w.mux = conn, mux
	mux.Keepalives(w.keepalive)

	// What serves outlives ctx: a stop is carried out with it.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	orders, err := conn.Subscribe(subjects.Orders(w.cfg.ID), w.receiver(hard))
	if err != nil {
		return err
	}
	// A worker that is stopping beats until its goodbye.
	beating, stopBeats := context.WithCancel(context.WithoutCancel(ctx))
	var beat sync.WaitGroup
	beat.Go(func() { w.news.beat(beating, beats) })
	err = w.serve(ctx)
	w.drain(hard, cancel)
	orders.Close()
	w.tasks.Wait()
	left := w.destroy()
	stopBeats()
	beat.Wait()
	w.news.goodbye(beats, err)
	return errors.Join(err, left)
}

func (w *Worker) options(name string, up, down func()) natsbus.Options {
	o := w.cfg.Bus
	o.Name, o.OnUp, o.OnDown = name, up, down
	if o.Log.GetLevel() == zerolog.Disabled {
		o.Log = w.log
	}
	return o
}

func (w *Worker) up() {
	w.upSince.Store(new(time.Now()))
	w.news.again()
}

func (w *Worker) down() { w.upSince.Store(nil) }

// serve announces the worker and watches over clients until ctx ends or the
// worker is refused.
func (w *Worker) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var children sync.WaitGroup
	children.Go(func() {
		if err := w.news.register(ctx, w.conn); err != nil {
			cancel(err)
		}
	})
	children.Go(func() { w.sweep(ctx) })
	<-ctx.Done()
	children.Wait()
	if err, refused := errors.AsType[*wire.Error](context.Cause(ctx)); refused {
		return err
	}
	return nil
}

// stopped is nil if err only says that ctx has ended.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// drain ends every command and waits until its bytes and its end are taken, for
// a bounded time; then it cancels what still waits.
func (w *Worker) drain(ctx context.Context, cancel func()) {
	_, channels := w.table.drain()
	w.endAll(channels, wire.Outcome{Kind: wire.WorkerDrained})
	dead, stop := context.WithTimeout(ctx, deadBound)
	w.awaitDead(dead, channels)
	stop()
	over := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		w.lives.Wait()
		close(over)
	})
	flush := time.NewTimer(w.cfg.Limits.Flush)
	defer flush.Stop()
	select {
	case <-over:
	case <-flush.C:
		w.log.Info().Int("channels", len(channels)).Msg("stopping although not everything was taken")
	}
	cancel()
	wait.Wait()
}

// destroy destroys the sandboxes of all leases.
func (w *Worker) destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyBound)
	defer cancel()
	leases, _ := w.table.drain()
	errs := make([]error, len(leases))
	var wait sync.WaitGroup
	for i, h := range leases {
		wait.Go(func() { errs[i] = w.tearDown(ctx, h, wire.Outcome{Kind: wire.WorkerDrained}) })
	}
	wait.Wait()
	return errors.Join(errs...)
}
