package sandbox

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/wire"
)

// umask of every command, so that what it makes does not depend on how the
// worker was started.
const commandUmask = 0o022

// spawnSpec is a command after every check: what fork and exec need.
type spawnSpec struct {
	file   string
	argv   []string
	env    []string
	cwd    *os.File
	stdio  [3]*os.File
	cgroup *os.File // nil: stay in the worker's
}

type spawned struct {
	pid        int
	pidfd      *os.File // non-blocking
	fixedUmask bool
}

// spawn forks and execs on a thread of its own. The thread leaves the file
// system context that all threads of a Go program share, takes the commands'
// umask, and dies with its goroutine, so nothing else in the worker sees it.
// Where the system forbids that, the worker's umask holds.
func spawn(s spawnSpec) (spawned, error) {
	type result struct {
		spawned
		err error
	}
	results := make(chan result, 1)
	go func() { // ends before spawn returns
		runtime.LockOSThread() // never unlocked
		var r result
		if unix.Unshare(unix.CLONE_FS) == nil {
			unix.Umask(commandUmask)
			r.fixedUmask = true
		}
		r.pid, r.pidfd, r.err = forkExec(s)
		results <- r
	}()
	r := <-results
	return r.spawned, r.err
}

func forkExec(s spawnSpec) (pid int, pidfd *os.File, err error) {
	// Our own descriptors are close-on-exec; those that the worker inherited
	// from whoever started it may not be.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS && err != unix.EINVAL {
		return 0, nil, os.NewSyscallError("close_range", err)
	}
	handle := -1
	attr := &syscall.ProcAttr{
		// The child enters the directory that was checked, not its name.
		Dir: "/proc/self/fd/" + strconv.Itoa(int(s.cwd.Fd())),
		Env: s.env,
		Sys: &syscall.SysProcAttr{Setpgid: true, PidFD: &handle},
	}
	for _, f := range s.stdio {
		attr.Files = append(attr.Files, f.Fd())
	}
	if s.cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(s.cgroup.Fd())
	}
	pid, err = syscall.ForkExec(s.file, s.argv, attr)
	runtime.KeepAlive(s)
	if err != nil {
		return 0, nil, err
	}
	if handle < 0 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return 0, nil, errors.New("the kernel gives no pidfd")
	}
	if err := unix.SetNonblock(handle, true); err != nil {
		return 0, nil, os.NewSyscallError("fcntl", err)
	}
	return pid, os.NewFile(uintptr(handle), "pidfd"), nil
}

// pipe returns a pipe whose end ours is non-blocking and in the poller and
// whose end theirs blocks, as a command expects of its standard streams.
func pipe(weWrite bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	mine, other := fds[0], fds[1]
	if weWrite {
		mine, other = other, mine
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		unix.Close(mine)
		unix.Close(other)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "pipe"), nil
}

// stdio is both sides of a command's standard streams.
type stdio struct {
	stdin, stdout, stderr *os.File // ours; stdin is nil without a pipe
	child                 [3]*os.File
}

func openStdio(kind wire.StdinKind) (s *stdio, err error) {
	s = &stdio{}
	defer func() {
		if err != nil {
			s.closeOurs()
			s.closeChild()
		}
	}()
	if kind == wire.StdinPipe {
		s.stdin, s.child[0], err = pipe(true)
	} else {
		s.child[0], err = os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	if s.stdout, s.child[1], err = pipe(false); err != nil {
		return nil, err
	}
	if s.stderr, s.child[2], err = pipe(false); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stdio) closeOurs()  { closeFiles(s.stdin, s.stdout, s.stderr) }
func (s *stdio) closeChild() { closeFiles(s.child[:]...) }

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipes and /dev/null: nothing is buffered, a second close is meant
		}
	}
}
