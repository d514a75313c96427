package sandbox

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadReady waits until a read of f would not block, only then takes a buffer
// from get, and reads once into it. An idle reader therefore holds no buffer.
// f must be non-blocking and have one reader.
//
// It returns io.EOF at the end, os.ErrClosed after f.Close, and
// os.ErrDeadlineExceeded when f's read deadline has passed and nothing is left
// to read at once; while something is, a passed deadline changes nothing. buf
// is nil when no buffer was taken; on error a taken one is returned with n 0.
func ReadReady(f *os.File, get func() []byte) (buf []byte, n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, 0, closedError(err)
	}
	var opErr error
	try := func(fd uintptr) bool {
		if !ready(int(fd), unix.POLLIN) {
			return false
		}
		if buf == nil {
			buf = get()
		}
		n, opErr = retry(func() (int, error) { return unix.Read(int(fd), buf) })
		return opErr != unix.EAGAIN
	}
	waitErr := rc.Read(try)
	if errors.Is(waitErr, os.ErrDeadlineExceeded) {
		done := false
		ctlErr := rc.Control(func(fd uintptr) { done = try(fd) })
		switch {
		case ctlErr != nil:
			waitErr = ctlErr
		case done:
			waitErr = nil
		}
	}
	switch {
	case waitErr != nil:
		return buf, 0, closedError(waitErr)
	case opErr != nil:
		return buf, 0, opErr
	case n == 0:
		return buf, 0, io.EOF
	}
	return buf, n, nil
}

// TryWrite makes exactly one attempt to write p to f without waiting. It
// returns 0 and nil when f takes nothing now, syscall.EPIPE when nobody can
// read it any more, and os.ErrClosed after f.Close.
func TryWrite(f *os.File, p []byte) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, closedError(err)
	}
	var opErr error
	err = rc.Control(func(fd uintptr) {
		n, opErr = retry(func() (int, error) { return unix.Write(int(fd), p) })
	})
	switch {
	case err != nil:
		return 0, closedError(err)
	case opErr == unix.EAGAIN:
		return 0, nil
	case opErr != nil:
		return 0, opErr
	}
	return n, nil
}

// WaitWritable waits until TryWrite would write something or fail. It returns
// os.ErrDeadlineExceeded at f's write deadline and os.ErrClosed after f.Close.
func WaitWritable(f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return closedError(err)
	}
	return closedError(rc.Write(func(fd uintptr) bool { return ready(int(fd), unix.POLLOUT) }))
}

// ready reports whether the operation that events stands for would not block;
// an error or a hang-up counts, for the operation then returns it.
func ready(fd int, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := retry(func() (int, error) { return unix.Poll(fds, 0) })
	return err != nil || n > 0
}

func retry(op func() (int, error)) (int, error) {
	for {
		n, err := op()
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// closedError gives the poller's unexported "file closed" its public name.
func closedError(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return err
	}
	return os.ErrClosed
}
