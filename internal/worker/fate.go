package worker

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// fate is how a channel comes to its end: what was asked for, from anywhere and
// at any time, and the process that it is carried out on. None of its methods
// but stop waits. Lock order: a duplex.End's, then mu, then a Process's.
type fate struct {
	asked chan struct{} // closed by the first ask
	hurry chan struct{} // capacity 1: killAt came nearer

	mu     sync.Mutex
	ending ending
	proc   *sandbox.Process // nil until started
	killAt time.Time        // zero: nobody asked
}

func newFate() *fate {
	return &fate{asked: make(chan struct{}), hurry: make(chan struct{}, 1)}
}

// ask ends the channel with o: TERM to the tree, KILL after grace. A later ask
// does not change the outcome, but may shorten the grace.
func (f *fate) ask(o wire.Outcome, grace time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	f.ending.ask(o)
	at := time.Now().Add(grace)
	if f.killAt.IsZero() {
		close(f.asked)
	} else if !at.Before(f.killAt) {
		return
	}
	f.killAt = at
	select {
	case f.hurry <- struct{}{}:
	default: // one pending wake-up is enough
	}
}

// look notes an exit that nobody has noted yet, so that causes are judged in the
// order in which they happened.
func (f *fate) look() {
	if f.proc == nil {
		return
	}
	select {
	case <-f.proc.Done():
		f.ending.gone(f.proc.Exit())
	default:
	}
}

// started hands over the process.
func (f *fate) started(p *sandbox.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proc = p
}

// outcome is what is decided, and whether the process is gone.
func (f *fate) outcome() (o wire.Outcome, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.ending.outcome(), f.ending.exit.Kind != ""
}

// finish is the outcome of a process that is gone and whose output has been
// read; held: the drain bound was used up.
func (f *fate) finish(held bool) wire.Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	f.ending.held = held
	return f.ending.outcome()
}

// signal sends a signal to the command's process group. Once it is gone, the
// answer is its outcome and nobody is signalled.
func (f *fate) signal(name string) wire.Answer {
	if o, gone := f.outcome(); gone {
		return wire.Answer{Outcome: &o}
	}
	f.mu.Lock()
	p := f.proc
	f.mu.Unlock()
	if p == nil {
		return wire.Answer{Error: wire.Errorf(wire.CodeUnavailable, "the command is being started; send the signal again")}
	}
	err := p.Signal(name)
	if errors.Is(err, os.ErrProcessDone) {
		o, _ := f.outcome()
		return wire.Answer{Outcome: &o}
	}
	return wire.Answer{Error: wire.AsError(err)}
}

// stop carries out what was asked for and returns when the tree is dead.
func (f *fate) stop(ctx context.Context) error {
	for {
		at, p := f.deadline()
		if time.Until(at) <= 0 {
			return p.Kill(ctx)
		}
		if err := f.stopBy(ctx, p, at); err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (f *fate) deadline() (at time.Time, p *sandbox.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killAt, f.proc
}

// errHurry ends a stop whose grace was shortened.
var errHurry = errors.New("worker: less grace than before")

func (f *fate) stopBy(ctx context.Context, p *sandbox.Process, at time.Time) error {
	try, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		for {
			select {
			case <-f.hurry:
			case <-try.Done():
				return
			}
			if now, _ := f.deadline(); now.Before(at) {
				cancel(errHurry)
				return
			}
		}
	})
	return p.Stop(try, time.Until(at))
}
