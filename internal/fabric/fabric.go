package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/embedded"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

// Options of Start. Zero fields take the default.
type Options struct {
	// Listen is host:port, port 0 for any free one; "" opens no port at all.
	Listen string
	// Dir holds store, worker state and sandboxes; "" is a temporary directory
	// that Stop removes.
	Dir string
	// RuntimeDir is where the state file goes if Listen is set; "" writes none.
	RuntimeDir string
	Tenants    []string // default {"default"}
	// WorkerLostAfter is the coordinator's; default 60 s.
	WorkerLostAfter time.Duration
	Limits          coordinator.Limits
	Worker          Worker
	Log             zerolog.Logger
}

// Worker describes the stack's worker.
type Worker struct {
	ID       string // default "local"
	Plugin   string // default "local"
	Provider string // default: the driver's name
	Driver   string // "process" (default) or "inline"
	Slots    int    // default 64
	Labels   map[string]string
	Limits   worker.Limits
}

// DefaultSlots is how many leases the stack's worker holds at once. A slot that
// nobody uses costs nothing.
const DefaultSlots = 64

// Stack is a running fabric.
type Stack struct {
	// Set by Start.
	opts   Options
	dir    string
	server *embedded.Server
	undo   []func() error // how to end what was started, in the order of the starts
	stop   func() error

	mu   sync.Mutex
	err  error         // of the first part that ended by itself
	done chan struct{} // closed with err
}

// Start returns a stack whose worker is registered. ctx bounds the start. The
// errors are *wire.Error; after one nothing is left. The caller owes a Stop.
func Start(ctx context.Context, o Options) (*Stack, error) {
	s := &Stack{opts: o, done: make(chan struct{})}
	s.stop = sync.OnceValue(s.end)
	if err := s.start(ctx); err != nil {
		if stopErr := s.Stop(); stopErr != nil {
			o.Log.Warn().Err(stopErr).Msg("what was started did not end well")
		}
		return nil, asError(err)
	}
	return s, nil
}

// asError keeps a typed error, and says what a local failure was: its text is
// for the user who started the stack.
func asError(err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	return wire.Errorf(wire.CodeUnavailable, "%v", err)
}

func (s *Stack) start(ctx context.Context) error {
	began := time.Now()
	phase := func(name string) {
		s.opts.Log.Debug().Dur("after", time.Since(began)).Msg(name + " is up")
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	// The driver tries out how it kills a tree; the server starts meanwhile.
	driver := s.startDriver(ctx)
	if err := s.startServer(ctx); err != nil {
		return err
	}
	phase("server")
	if err := s.startCoordinator(ctx); err != nil {
		return err
	}
	phase("coordinator")
	d, err := driver()
	if err != nil {
		return wire.Errorf(wire.CodeUnavailable, "the worker cannot run commands here: %v", err)
	}
	phase("driver")
	if err := s.startWorker(ctx, d); err != nil {
		return err
	}
	phase("worker")
	return nil
}

func (s *Stack) makeDir() error {
	if s.dir = s.opts.Dir; s.dir != "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "weft-")
	if err != nil {
		return fmt.Errorf("a directory for the store: %w", err)
	}
	s.dir = dir
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	return nil
}

func (s *Stack) startServer(ctx context.Context) error {
	// A start that is given up goes on in its directory for a moment. An empty
	// store is quick to start, and one that is to be removed is waited for.
	starting := ctx
	if s.opts.Dir == "" {
		starting = context.WithoutCancel(ctx)
	}
	srv, err := embedded.Start(starting, embedded.Options{
		Listen: s.opts.Listen, StoreDir: filepath.Join(s.dir, "store"), Log: s.log("nats"),
	})
	if err != nil {
		return err
	}
	s.server = srv
	s.undo = append(s.undo, func() error { srv.Shutdown(); return nil })
	if ctx.Err() != nil {
		return wire.Errorf(wire.CodeDeadlineExceeded, "the start was given up: %v", context.Cause(ctx))
	}
	return nil
}

func (s *Stack) startCoordinator(ctx context.Context) error {
	c, err := coordinator.New(coordinator.Config{
		Name: "local", NATS: s.bus(), Tenants: s.opts.Tenants,
		WorkerLostAfter: s.opts.WorkerLostAfter, Limits: s.opts.Limits, Log: s.log("coordinator"),
	})
	if err != nil {
		return err
	}
	if err := s.run(ctx, "coordinator", c.Run, c.Ready()); err != nil {
		return err
	}
	if s.opts.Listen == "" || s.opts.RuntimeDir == "" {
		return nil
	}
	file, err := runfile.Write(s.opts.RuntimeDir, runfile.State{URL: s.URL(), Token: s.Token()})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, file.Remove)
	return nil
}

// startDriver makes the driver in the background; the result waits for it.
func (s *Stack) startDriver(ctx context.Context) func() (*sandbox.Local, error) {
	made := sync.OnceValues(func() (*sandbox.Local, error) {
		cfg := sandbox.Config{Root: filepath.Join(s.dir, "sandboxes")}
		switch s.opts.Worker.Driver {
		case "", "process":
			return sandbox.NewProcess(ctx, cfg)
		case "inline":
			return sandbox.NewInline(ctx, cfg)
		}
		return nil, errors.New("the driver is neither process nor inline")
	})
	go made() // ended by the undo, which waits for the same value
	s.undo = append(s.undo, func() error {
		if d, err := made(); err == nil {
			return d.Close()
		}
		return nil
	})
	return made
}

func (s *Stack) startWorker(ctx context.Context, d sandbox.Driver) error {
	o := s.opts.Worker
	w, err := worker.New(worker.Config{
		Bus: s.bus(), ID: cmp.Or(o.ID, "local"), Plugin: cmp.Or(o.Plugin, "local"),
		Provider: o.Provider, Driver: d, Slots: cmp.Or(o.Slots, DefaultSlots), Labels: o.Labels,
		StateDir: filepath.Join(s.dir, "worker"), InsecureOrders: true,
		Limits: o.Limits, Log: s.log("worker"),
	})
	if err != nil {
		return err
	}
	return s.run(ctx, "worker", w.Run, w.Ready())
}

// run starts a part and returns when it is ready.
func (s *Stack) run(ctx context.Context, name string, run func(context.Context) error, ready <-chan struct{}) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	var result error
	go func() {
		defer close(ended)
		result = run(own)
		if own.Err() == nil {
			s.fail(name, result)
		}
	}()
	s.undo = append(s.undo, func() error {
		cancel()
		<-ended
		return result
	})
	select {
	case <-ready:
		return nil
	case <-ended:
		return cmp.Or(result, error(wire.Errorf(wire.CodeUnavailable, "the %s ended before it was ready", name)))
	case <-ctx.Done():
		return wire.Errorf(wire.CodeDeadlineExceeded, "the %s did not start: %v", name, context.Cause(ctx))
	}
}

func (s *Stack) fail(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = cmp.Or(err, error(wire.Errorf(wire.CodeUnavailable, "the %s ended by itself", name)))
		close(s.done)
	}
}

func (s *Stack) log(part string) zerolog.Logger {
	return s.opts.Log.With().Str("part", part).Logger()
}

func (s *Stack) bus() natsbus.Options {
	return natsbus.Options{InProcess: s.server.InProcess(), Auth: natsbus.Auth{Token: s.Token()}}
}

// URL is where the server listens, without the token; "" if it has no port.
func (s *Stack) URL() string { return s.server.ClientURL() }

// Token is what a connection must present; "" if none is asked for.
func (s *Stack) Token() string { return s.server.Token() }

// InProcess makes connections to the server without a socket.
func (s *Stack) InProcess() natsbus.InProcess { return s.server.InProcess() }

// Dir is the directory of store, worker state and sandboxes.
func (s *Stack) Dir() string { return s.dir }

// Done is closed when a part has ended by itself; Err then says why.
func (s *Stack) Done() <-chan struct{} { return s.done }

// Err is nil until Done is closed.
func (s *Stack) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stop ends the stack and returns when nothing of it is left, with what went
// wrong on the way. Calling it again returns the same.
func (s *Stack) Stop() error { return s.stop() }

func (s *Stack) end() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	return errors.Join(errs...)
}
