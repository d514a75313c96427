package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree finds and kills a set of processes: those of a command, of a sandbox, or
// of a driver.
type tree interface {
	// sub makes the tree of a part of this one; name is unique in it.
	sub(name string) (tree, error)
	// dir opens the cgroup to start the command in, nil when there is none.
	dir() (*os.File, error)
	// lead says which process the tree grows from, once it is started.
	lead(pid int)
	// alive lists the processes of the tree, zombies excepted.
	alive() ([]int, error)
	// kill sends KILL to every process of the tree once.
	kill() error
	// remove gives back what the tree itself takes. It must be empty.
	remove() error
}

// rescan bounds the wait for one process of a tree before the tree is listed
// again: it may have grown, or the pid may have gone to somebody else.
const rescan = 100 * time.Millisecond

// killTree kills t until nothing is left of it or ctx ends.
func killTree(ctx context.Context, t tree) error {
	for {
		pids, err := t.alive()
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := t.kill(); err != nil {
			return fmt.Errorf("kill tree: %w", err)
		}
		if err := waitGone(ctx, pids[0]); err != nil {
			return fmt.Errorf("kill tree: %d processes left: %w", len(pids), err)
		}
	}
}

// waitEmpty waits until t has no process or ctx ends.
func waitEmpty(ctx context.Context, t tree) error {
	for {
		pids, err := t.alive()
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := waitGone(ctx, pids[0]); err != nil {
			return err
		}
	}
}

// signalTree sends sig to every process of t once. The list is read again after
// the handles were opened: a pid on both lists is a handle on a member, for a
// pid that was given away in between is not on the second one.
func signalTree(t tree, sig syscall.Signal) error {
	before, err := t.alive()
	if err != nil || len(before) == 0 {
		return err
	}
	handles := make(map[int]int, len(before))
	defer func() {
		for _, fd := range handles {
			unix.Close(fd)
		}
	}()
	for _, pid := range before {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			handles[pid] = fd
		}
	}
	after, err := t.alive()
	if err != nil {
		return err
	}
	for pid, fd := range handles {
		if !slices.Contains(after, pid) {
			continue
		}
		if sendErr := unix.PidfdSendSignal(fd, sig, nil, 0); sendErr != nil && sendErr != unix.ESRCH {
			err = errors.Join(err, fmt.Errorf("signal %d to process %d: %w", sig, pid, sendErr))
		}
	}
	return err
}

// waitGone returns nil when the process pid has ended or after rescan, ctx's
// cause when ctx ends first.
func waitGone(ctx context.Context, pid int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if err := f.SetReadDeadline(time.Now().Add(rescan)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(0, 1)) })
	defer stop()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	err = rc.Read(func(fd uintptr) bool { return ready(int(fd), unix.POLLIN) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}
