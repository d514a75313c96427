package cli

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// stopSignals are the signals that weft acts on.
func stopSignals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// signalError is the cause of what ends because weft was told to stop.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "interrupted by " + e.sig.String() }

// status is the exit status of a program that the signal ended.
func (e *signalError) status() int { return 128 + int(e.sig) }

// interruptible returns a context that the first signal ends, with a
// *signalError as its cause. stop returns when nothing of it is left.
func (a *app) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	sigs := make(chan os.Signal, 1)
	ended := make(chan struct{})
	unnotify := a.sys.Notify(sigs, stopSignals()...)
	go func() {
		defer close(ended)
		select {
		case s := <-sigs:
			cancel(&signalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		unnotify()
		cancel(nil)
		<-ended
	}
}

// interrupted turns the error of a call that a signal has ended into the exit
// status for it.
func interrupted(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*signalError](context.Cause(ctx)); ok && err != nil {
		return &exit{code: e.status()}
	}
	return err
}
