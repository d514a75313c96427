package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of these tests for something that comes at once on
// a machine that is not overloaded.
const patience = 30 * time.Second

// home is one user with an own machine, as far as weft can tell.
type home struct {
	t   *testing.T
	dir string
	env []string
}

func newHome(t *testing.T) *home {
	t.Helper()
	// Not t.TempDir: its name is the test's and may be longer than a socket's may be.
	dir, err := os.MkdirTemp("", "weft-home-")
	if err != nil {
		t.Fatal(err)
	}
	h := &home{t: t, dir: dir, env: []string{"PATH=" + os.Getenv("PATH")}}
	for name, sub := range map[string]string{"HOME": "home", "TMPDIR": "tmp", "XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		h.env = append(h.env, name+"="+filepath.Join(dir, sub))
	}
	t.Cleanup(func() {
		if pids := h.residents(); len(pids) > 0 {
			t.Errorf("processes are left: %v", pids)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *home) path(name ...string) string { return filepath.Join(append([]string{h.dir}, name...)...) }

// residents are the processes whose working directory is below the home: those
// that run in sandboxes.
func (h *home) residents() []int {
	var pids []int
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range links {
		if cwd, err := os.Readlink(l); err == nil && strings.HasPrefix(cwd, h.dir+"/") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			if err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// evict kills what a killed worker has left in its sandboxes.
func (h *home) evict() {
	for _, pid := range h.residents() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	h.until("the sandboxes are empty", func() bool { return len(h.residents()) == 0 })
}

// clean fails the test if something is in the user's directory for temporary files.
func (h *home) clean() {
	h.t.Helper()
	left, err := os.ReadDir(h.path("tmp"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range left {
		h.t.Errorf("%s is left", e.Name())
	}
}

// until waits for a state that nothing announces.
func (h *home) until(what string, ok func() bool) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			h.t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// process is one that was started.
type process struct {
	h        *home
	cmd      *exec.Cmd
	out, err *text
	exited   chan struct{}
}

// start starts a binary of ours; it is killed at the end of the test if it still
// runs. prepare may set the streams, which are else empty, p.out and p.err.
func (h *home) start(name string, args []string, prepare ...func(*exec.Cmd)) *process {
	h.t.Helper()
	p := &process{h: h, out: &text{}, err: &text{}, exited: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(bin, name), args...)
	p.cmd.Env, p.cmd.Dir = h.env, bin
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	for _, f := range prepare {
		f(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the tests look at ProcessState
	}()
	h.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.exited
		if h.t.Failed() {
			h.t.Logf("%s %.200q:\n%s", name, args, p.err.last(4000))
		}
	})
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.h.t.Error(err)
	}
}

// wait returns the exit status, 128+n if signal n ended the process.
func (p *process) wait() int {
	p.h.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(scaled(2*patience, 20*patience)):
		p.h.t.Fatalf("it does not end; stderr: %s", p.err.last(2000))
	}
	ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// kill is kill -9 and waits for the end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// stop ends a service and wants it to end well.
func (p *process) stop() {
	p.h.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.h.t.Errorf("%s ended with %d: %s", p.cmd.Path, code, p.err.last(2000))
	}
}

// says waits until the process has written s.
func (p *process) says(t *text, s string) {
	p.h.t.Helper()
	select {
	case <-t.has(s):
	case <-p.exited:
		if !strings.Contains(t.String(), s) {
			p.h.t.Fatalf("it ended without %q; stderr: %s", s, p.err.last(2000))
		}
	case <-time.After(patience):
		p.h.t.Fatalf("no %q; stderr: %s", s, p.err.last(2000))
	}
}

// result is what a finished command left.
type result struct {
	code           int
	stdout, stderr string
}

// weft runs the command line to its end.
func (h *home) weft(stdin string, args ...string) result {
	h.t.Helper()
	p := h.start("weft", args, func(c *exec.Cmd) { c.Stdin = strings.NewReader(stdin) })
	code := p.wait()
	return result{code, p.out.String(), p.err.String()}
}

// want checks a result; stderr must contain its text, or be empty if that is.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || !strings.Contains(r.stderr, stderr) || stderr == "" && r.stderr != "" {
		t.Errorf("exit %d, stdout %.300q, stderr %.300q; want %d, %.300q and in stderr %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}

// text collects output and tells when something was written.
type text struct {
	mu    sync.Mutex
	b     bytes.Buffer
	waits map[string]chan struct{}
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	for s, c := range t.waits {
		if bytes.Contains(t.b.Bytes(), []byte(s)) {
			close(c)
			delete(t.waits, s)
		}
	}
	return len(p), nil
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

func (t *text) last(n int) string {
	s := t.String()
	return s[max(0, len(s)-n):]
}

// has returns a channel that is closed as soon as s was written.
func (t *text) has(s string) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{})
	if bytes.Contains(t.b.Bytes(), []byte(s)) {
		close(c)
		return c
	}
	if t.waits == nil {
		t.waits = map[string]chan struct{}{}
	}
	t.waits[s] = c
	return c
}

// slowly reads r to its end: the last `last` of total bytes at rate bytes per second.
func slowly(ctx context.Context, w io.Writer, r io.Reader, total, last, rate int64) error {
	if _, err := io.CopyN(w, r, total-last); err != nil {
		return fmt.Errorf("the fast part: %w", err)
	}
	const tick = 10 * time.Millisecond
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if _, err := io.CopyN(w, r, rate*int64(tick)/int64(time.Second)); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
