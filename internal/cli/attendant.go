package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

const (
	// requestTimeout bounds a signal or a stop on its way to the worker.
	requestTimeout = 5 * time.Second
	// stopMargin is added to the command's grace; a stop that takes longer is
	// not coming, and weft leaves.
	stopMargin = 3 * time.Second
)

// attendant turns the signals of this process into what becomes of the command;
// the package doc has the rules. Before the command runs a signal ends setup.
type attendant struct {
	// Set once.
	setup  context.Context
	cancel context.CancelCauseFunc
	stderr io.Writer
	grace  time.Duration
	left   chan struct{} // closed when weft is to leave without waiting further
	leave  func()
	wg     sync.WaitGroup
	ended  context.Context // ends requests at the end of weft
	end    context.CancelFunc

	mu      sync.Mutex
	channel *client.Channel  // nil until the command runs
	begun   bool             // output has come, so the command runs and channel is about to be known
	early   []syscall.Signal // came in between
	detach  bool             // what would stop the command detaches from it instead
	ints    int
	sig     syscall.Signal // that ends weft; 0: none
	late    *time.Timer
}

// attend starts the attendant. close ends it.
func (a *app) attend(ctx context.Context, grace time.Duration) *attendant {
	t := &attendant{stderr: a.sys.Stderr, grace: grace, left: make(chan struct{})}
	if t.grace == 0 {
		t.grace = wire.DefaultGrace
	}
	t.leave = sync.OnceFunc(func() { close(t.left) })
	t.setup, t.cancel = context.WithCancelCause(ctx)
	t.ended, t.end = context.WithCancel(context.WithoutCancel(ctx))
	sigs := make(chan os.Signal, 4)
	unnotify := a.sys.Notify(sigs, stopSignals()...)
	// A write to a pipe without a reader is to fail with EPIPE, not to end weft;
	// catching, unlike ignoring, is not inherited by the commands.
	unpipe := a.sys.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	t.wg.Go(func() {
		defer unnotify()
		defer unpipe()
		for {
			select {
			case s := <-sigs:
				t.signal(s.(syscall.Signal))
			case <-t.ended.Done():
				return
			}
		}
	})
	return t
}

// detaches says that the command is not ours to stop.
func (t *attendant) detaches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detach = true
}

func (t *attendant) close() {
	t.mu.Lock()
	if t.late != nil {
		t.late.Stop()
	}
	t.mu.Unlock()
	t.end()
	t.cancel(nil)
	t.wg.Wait()
}

// signal acts on one signal.
func (t *attendant) signal(s syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.channel == nil && t.begun && len(t.early) == 0 {
		t.early = append(t.early, s)
		return
	}
	t.signalLocked(s)
}

func (t *attendant) signalLocked(s syscall.Signal) {
	if s == syscall.SIGINT {
		t.ints++
	}
	switch {
	case t.channel == nil && t.setup.Err() == nil:
		t.sig = s
		t.cancel(&signalError{s})
	case t.channel == nil:
		t.leave()
	case s == syscall.SIGINT && t.ints == 1 && t.sig == 0:
		t.request(func(ctx context.Context, ch *client.Channel) error { return ch.Signal(ctx, "INT") })
	case t.sig == 0:
		t.sig = s
		t.stopLocked()
	case t.detach:
		t.leave()
	default:
		// The release that follows would wait out the command's grace.
		t.request(func(ctx context.Context, ch *client.Channel) error { return ch.Signal(ctx, "KILL") })
		t.leave()
	}
}

func (t *attendant) stopLocked() {
	if t.detach {
		t.request(func(ctx context.Context, ch *client.Channel) error { return ch.Detach(ctx) })
		if t.late == nil {
			t.late = time.AfterFunc(requestTimeout, t.leave)
		}
		return
	}
	t.request(func(ctx context.Context, ch *client.Channel) error { return ch.Stop(ctx, t.grace) })
	if t.late == nil {
		t.late = time.AfterFunc(t.grace+stopMargin, t.leave)
	}
}

// request asks the worker for something, without waiting. Called with mu held.
func (t *attendant) request(f func(context.Context, *client.Channel) error) {
	ch := t.channel
	if ch == nil || t.ended.Err() != nil {
		return
	}
	t.wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.ended, requestTimeout)
		defer cancel()
		err := f(ctx, ch)
		if err != nil && t.ended.Err() == nil && wire.CodeOf(err) != wire.CodeChannelEnded {
			report(t.stderr, err)
		}
	})
}

// running says that the command runs. It is stopped at once if a signal came
// while it was being opened.
func (t *attendant) running(ch *client.Channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channel = ch
	if t.sig != 0 {
		t.stopLocked()
	}
	for _, s := range t.early {
		t.signalLocked(s)
	}
}

// begin says that output has come.
func (t *attendant) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
}

// pipe sends the command what the kernel would have sent it.
func (t *attendant) pipe() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.request(func(ctx context.Context, ch *client.Channel) error { return ch.Signal(ctx, "PIPE") })
}

// signalled returns the exit for the signal that ended weft, or nil. A single
// INT ends the command and not weft.
func (t *attendant) signalled() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sig == 0 {
		return nil
	}
	return &exit{code: (&signalError{t.sig}).status()}
}

// pipeGrace is how long a command may write to a stream that nobody reads
// before it is told.
const pipeGrace = 2 * time.Second

// outlet is one of our output streams; see the package doc for what happens when
// its reader goes away.
type outlet struct {
	w     io.Writer
	first func() // called before the first byte is written; may be nil
	pipe  func()

	// Owned by the one who writes.
	gone time.Time // when the reader was found to be gone; zero: it is there
	told bool
}

func (o *outlet) Write(p []byte) (int, error) {
	if o.first != nil {
		o.first()
		o.first = nil
	}
	if o.gone.IsZero() {
		n, err := o.w.Write(p)
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.ErrClosedPipe) {
			return n, err
		}
		o.gone = time.Now()
	}
	if !o.told && time.Since(o.gone) >= pipeGrace {
		o.told = true
		o.pipe()
	}
	return len(p), nil
}
