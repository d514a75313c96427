package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/wire"
)

// Process is one command that was started, with its whole tree. The package
// doc tells its life. Whoever started it calls Close.
type Process struct {
	// Set once.
	pid   int
	pidfd *os.File
	tree  tree
	io    *stdio
	box   *box
	done  chan struct{} // closed by watch after exit is set
	turn  chan struct{} // capacity 1: held by the one that finishes

	exit     wire.Outcome // set before done is closed
	finished bool         // guarded by turn

	mu     sync.Mutex
	reaped bool // the pid may be somebody else's; guarded by mu
	held   bool // the drain bound was used up; guarded by mu

	empty atomic.Bool // command and tree are gone: nothing is left that could start anything
}

// Pid is the command's process id, and its process group's.
func (p *Process) Pid() int { return p.pid }

// Stdin is the write end of the command's standard input, nil without a pipe.
// It is non-blocking; the caller closes it to give the command its EOF.
func (p *Process) Stdin() *os.File { return p.io.stdin }

// Stdout is the read end of the command's standard output. It is non-blocking.
func (p *Process) Stdout() *os.File { return p.io.stdout }

// Stderr is the read end of the command's standard error. It is non-blocking.
func (p *Process) Stderr() *os.File { return p.io.stderr }

// Done is closed when the command itself is gone. Its output may not have been
// read yet, and its descendants may live.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the command ended: exited or signaled, with Drain set if End ran
// into the bound. Before Done it is the zero Outcome.
func (p *Process) Exit() wire.Outcome {
	select {
	case <-p.done:
	default:
		return wire.Outcome{}
	}
	o := p.exit
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		o.Drain = wire.DrainHeld
	}
	return o
}

// Signal sends the signal of that name (with or without SIG) to the command's
// process group. An unknown name is INVALID_ARGUMENT; after Done it fails with
// os.ErrProcessDone and nothing is signalled.
func (p *Process) Signal(name string) error {
	num := wire.SignalNumber(name)
	if num == 0 {
		return wire.Errorf(wire.CodeInvalidArgument, "%q is no signal name; use one like TERM or INT", name)
	}
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	err := unix.Kill(-p.pid, syscall.Signal(num))
	if err == unix.ESRCH { // the command has moved to another group
		err = unix.Kill(p.pid, syscall.Signal(num))
	}
	if err != nil {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// Stop ends the command: TERM to every process of the tree, at most grace for
// all of them to go, then KILL. It returns nil when nothing of the tree is
// left, and the cause when ctx ends before, in which case Kill may be called.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if p.empty.Load() {
		return nil
	}
	// A failed TERM is no reason to spare the tree: KILL follows.
	_ = signalTree(p.tree, syscall.SIGTERM)
	_ = signalTree(p.tree, syscall.SIGCONT) // stopped ones could not act on it
	waitCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = waitEmpty(waitCtx, p.tree)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.Kill(ctx)
}

// Kill kills the whole tree and returns nil when nothing of it is left.
func (p *Process) Kill(ctx context.Context) error {
	if p.empty.Load() {
		return nil
	}
	if err := killTree(ctx, p.tree); err != nil {
		return err
	}
	select {
	case <-p.done:
		p.empty.Store(true)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// End carries out the end of the command's life: it waits for Done, lets drain
// run until streamsEnded is closed or the bound is used up (held), kills the
// tree, and makes readers of the output stop waiting (see ReadReady). An error
// means that ctx ended or that processes could not be killed; the output is
// then left as it is.
func (p *Process) End(ctx context.Context, drain *Drain, streamsEnded <-chan struct{}) (held bool, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if held, err = drain.Wait(ctx, streamsEnded); err != nil {
		return held, err
	}
	if held {
		p.mu.Lock()
		p.held = true
		p.mu.Unlock()
	}
	if err := p.Kill(ctx); err != nil {
		return held, err
	}
	for _, f := range []*os.File{p.io.stdout, p.io.stderr} {
		if err := f.SetReadDeadline(time.Unix(0, 1)); err != nil && !errors.Is(err, os.ErrClosed) {
			return held, fmt.Errorf("end output: %w", err)
		}
	}
	return held, nil
}

// Close kills what is left of the tree, gives back what the process takes, and
// closes its pipes. It may be called again; the pipes are closed in any case.
func (p *Process) Close(ctx context.Context) error {
	err := p.finish(ctx)
	p.io.closeOurs()
	return err
}

// finish is Close without the pipes: when the sandbox is destroyed, a reader
// still gets the output that is in them.
func (p *Process) finish(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.turn }()
	if p.finished {
		return nil
	}
	if err := p.Kill(ctx); err != nil {
		return err
	}
	if err := p.reap(); err != nil {
		return err
	}
	if err := p.tree.remove(); err != nil {
		return err
	}
	p.finished = true
	p.box.forget(p)
	return nil
}

func (p *Process) reap() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	_, err := retry(func() (int, error) { return unix.Wait4(p.pid, nil, unix.WNOHANG, nil) })
	if err != nil && err != unix.ECHILD {
		return os.NewSyscallError("wait4", err)
	}
	p.reaped = true
	p.tree.lead(0)
	return p.pidfd.Close()
}

// watch waits until the command is gone, without reaping it and without
// holding a thread, and says so. It is owned by the sandbox.
func (p *Process) watch() {
	defer close(p.done)
	rc, err := p.pidfd.SyscallConn()
	if err == nil {
		err = rc.Read(func(fd uintptr) bool {
			var gone bool
			p.exit, gone = peekExit(int(fd), unix.WNOHANG)
			return gone
		})
	}
	if err != nil { // a kernel whose pidfds cannot be polled: hold a thread
		p.exit, _ = peekExit(int(p.pidfd.Fd()), 0)
	}
}

// peekExit reads the exit of the child that pidfd stands for and leaves it a
// zombie. A child that somebody else has reaped has an unknown end.
func peekExit(pidfd, options int) (o wire.Outcome, gone bool) {
	var info unix.Siginfo
	_, err := retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
	})
	if err != nil {
		return wire.Outcome{Kind: wire.Unknown}, true
	}
	// unix.Siginfo hides the union after its first three fields: si_pid, si_uid
	// and si_status, aligned like a pointer.
	union := (*[3]int32)(unsafe.Add(unsafe.Pointer(&info), (3*4+unsafe.Sizeof(uintptr(0))-1)&^(unsafe.Sizeof(uintptr(0))-1)))
	pid, status := union[0], int(union[2])
	const cldExited, cldKilled, cldDumped = 1, 2, 3
	switch {
	case pid == 0:
		return wire.Outcome{}, false
	case info.Code == cldExited:
		return wire.ExitedWith(status), true
	case info.Code == cldKilled || info.Code == cldDumped:
		return wire.SignaledBy(wire.SignalName(status), info.Code == cldDumped), true
	}
	return wire.Outcome{Kind: wire.Unknown}, true
}
