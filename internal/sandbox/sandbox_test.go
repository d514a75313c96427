package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/sandbox/sandboxtest"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, make func(context.Context, sandbox.Config) (*sandbox.Local, error), treeKill string) *sandbox.Local {
	t.Helper()
	return openAt(t, make, t.TempDir(), treeKill)
}

func openAt(t testing.TB, make func(context.Context, sandbox.Config) (*sandbox.Local, error), root, treeKill string) *sandbox.Local {
	t.Helper()
	d, err := make(t.Context(), sandbox.Config{Root: root, TreeKill: treeKill})
	if err != nil && treeKill == sandbox.TreeKillCgroup {
		t.Skipf("NOT TESTED on this machine: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestDrivers(t *testing.T) {
	for _, c := range []struct {
		name, treeKill string
		make           func(context.Context, sandbox.Config) (*sandbox.Local, error)
		plugin         bool
	}{
		{"process/cgroup", sandbox.TreeKillCgroup, sandbox.NewProcess, true},
		{"process/environ-scan", sandbox.TreeKillScan, sandbox.NewProcess, true},
		{"inline/auto", "", sandbox.NewInline, false},
	} {
		t.Run(c.name+"/capabilities", func(t *testing.T) {
			d := open(t, c.make, c.treeKill)
			caps := d.Capabilities()
			t.Logf("%+v", caps)
			if d.Plugin() != c.plugin || !strings.HasPrefix(c.name, d.Name()) || !caps.Duplex {
				t.Errorf("%s, plugin %v, %+v", d.Name(), d.Plugin(), caps)
			}
			if c.treeKill != "" && caps.TreeKill != c.treeKill || caps.WholeTree != (caps.TreeKill == sandbox.TreeKillCgroup) {
				t.Errorf("capabilities %+v", caps)
			}
		})
		t.Run(c.name, func(t *testing.T) {
			sandboxtest.TestDriver(t, func(t *testing.T) sandbox.Driver { return open(t, c.make, c.treeKill) })
		})
	}
}

func TestE033_NothingLeaks(t *testing.T) {
	rounds := 200
	if os.Getenv("WEFT_SOAK") == "1" {
		rounds = 1000
	}
	for _, kind := range []string{sandbox.TreeKillCgroup, sandbox.TreeKillScan} {
		t.Run(kind, func(t *testing.T) {
			box := sandboxtest.Box(t, open(t, sandbox.NewProcess, kind), "l")
			round := func() {
				if _, err := box.Start(t.Context(), sandbox.Command{Argv: []string{"no-such"}}); err == nil {
					t.Fatal("started")
				}
				p, err := box.Start(t.Context(), sandbox.Command{Argv: []string{"true"}})
				if err != nil {
					t.Fatal(err)
				}
				if r := sandboxtest.Finish(t, p, time.Minute); !r.Exit.Success() {
					t.Fatal(r.Exit)
				}
			}
			round()
			fds, goroutines := countFDs(t), goleak.IgnoreCurrent()
			start := time.Now()
			for range rounds {
				round()
			}
			t.Logf("%v a round", time.Since(start)/time.Duration(rounds))
			if now := countFDs(t); now > fds {
				t.Errorf("descriptors %d, were %d", now, fds)
			}
			goleak.VerifyNone(t, goroutines)
		})
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestIdleProcessesHoldNoThreads(t *testing.T) {
	box := sandboxtest.Box(t, open(t, sandbox.NewProcess, ""), "l")
	before := countThreads(t)
	for range 40 {
		sandboxtest.Start(t, box, sandbox.Command{Argv: []string{"sleep", "1000"}})
	}
	if grew := countThreads(t) - before; grew > 10 {
		t.Errorf("40 commands cost %d threads", grew)
	}
}

func countThreads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

func TestLeftoversAreCleaned(t *testing.T) {
	for _, kind := range []string{sandbox.TreeKillCgroup, sandbox.TreeKillScan} {
		t.Run(kind, func(t *testing.T) {
			root := t.TempDir()
			d := openAt(t, sandbox.NewProcess, root, kind)
			p := sandboxtest.Start(t, sandboxtest.Box(t, d, "l"), sandboxtest.Sh("echo up; exec sleep 1000"))
			sandboxtest.Line(t, p.Stdout())
			if _, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: root}); !errors.Is(err, syscall.EWOULDBLOCK) {
				t.Fatalf("a second driver on the same root: %v", err)
			}
			sandbox.AbandonLock(d) // as a killed worker does
			openAt(t, sandbox.NewProcess, root, kind)
			<-p.Done()
			if p.Exit() != wire.SignaledBy("KILL", false) {
				t.Errorf("the leftover ended with %s", p.Exit())
			}
			left, err := filepath.Glob(filepath.Join(root, "process-*"))
			if err != nil || len(left) != 0 {
				t.Errorf("left: %v %v", left, err)
			}
		})
	}
}

func TestDestroyDuringStarts(t *testing.T) {
	d := open(t, sandbox.NewProcess, "")
	for range 20 {
		box := sandboxtest.Box(t, d, "l")
		var (
			mu       sync.Mutex
			procs    []*sandbox.Process
			starters sync.WaitGroup
			started  = make(chan struct{}, 1000)
		)
		for range 4 {
			starters.Go(func() {
				for {
					p, err := box.Start(t.Context(), sandboxtest.Sh("sleep 1000"))
					if err != nil {
						if wire.CodeOf(err) != wire.CodeSandboxNotCached {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					procs = append(procs, p)
					mu.Unlock()
					started <- struct{}{}
				}
			})
		}
		<-started
		if err := box.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		starters.Wait()
		for _, p := range procs {
			if err := syscall.Kill(p.Pid(), 0); err != syscall.ESRCH {
				t.Errorf("process %d outlived its sandbox", p.Pid())
			}
			if err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
}

// A worker under another umask: its commands have theirs, and it keeps its own.
func TestCommandUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	d := open(t, sandbox.NewProcess, "")
	if !d.Capabilities().FixedUmask && mayUnshare() {
		t.Fatal("commands get the worker's umask")
	}
	r := sandboxtest.Run(t, sandboxtest.Box(t, d, "l"), sandboxtest.Sh("umask"))
	if d.Capabilities().FixedUmask && string(r.Stdout) != "0022\n" {
		t.Errorf("umask %q", r.Stdout)
	}
	if now := syscall.Umask(0o077); now != 0o077 {
		t.Errorf("the worker's own umask became %o", now)
	}
}

func mayUnshare() bool {
	may := make(chan bool)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		may <- unix.Unshare(unix.CLONE_FS) == nil
	}()
	return <-may
}

func TestS032_CheckEnv(t *testing.T) {
	for name, value := range map[string]string{
		"LD_PRELOAD": "x", "LD_LIBRARY_PATH": "/x", "BASH_ENV": "x", "ENV": "x", "IFS": "x", "PYTHONSTARTUP": "x",
		"NODE_OPTIONS": "x", "PERL5OPT": "x", "RUBYOPT": "x", "GCONV_PATH": "x", "BASH_FUNC_ls%%": "() { :; }",
		"WEFT_SANDBOX": "x", "A=LD_PRELOAD": "x", "": "x", "NUL": "a\x00b", "PATH": "/bin:",
	} {
		err := sandbox.CheckEnv(map[string]string{name: value, "OK": "1"})
		if wire.CodeOf(err) != wire.CodeInvalidArgument || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "OK") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, path := range []string{".", "", ":/bin", "/bin::/usr/bin", "bin", "/bin:../x"} {
		if sandbox.CheckEnv(map[string]string{"PATH": path}) == nil {
			t.Errorf("PATH=%s passed", path)
		}
	}
	if err := sandbox.CheckEnv(map[string]string{"PATH": "/bin:/usr/bin", "HOME": "/", "LDFLAGS": "-s", "PYTHONPATH": "x", "A": ""}); err != nil {
		t.Error(err)
	}
}

func TestE018_DrainCountsOnlyWithCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := sandbox.NewDrain(2 * time.Second)
		start := time.Now()
		go func() {
			time.Sleep(time.Second)
			d.Block() // one second used
			d.Block()
			time.Sleep(time.Hour)
			d.Unblock()
			time.Sleep(time.Hour)
			d.Unblock()
		}()
		held, err := d.Wait(t.Context(), nil)
		if took := time.Since(start); !held || err != nil || took != 2*time.Hour+2*time.Second {
			t.Errorf("held %v after %v: %v", held, took, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := sandbox.NewDrain(time.Second)
		d.Block()
		ended := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(ended) })
		if held, err := d.Wait(t.Context(), ended); held || err != nil {
			t.Errorf("held %v: %v", held, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("lease lost")
		time.AfterFunc(time.Minute, func() { cancel(why) })
		if _, err := d.Wait(ctx, nil); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	})
}

func TestReadReady(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	taken := 0
	get := func() []byte { taken++; return make([]byte, 8) }
	past := time.Unix(0, 1)
	if err := r.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	if buf, _, err := sandbox.ReadReady(r, get); !errors.Is(err, os.ErrDeadlineExceeded) || buf != nil || taken != 0 {
		t.Fatalf("idle: %v %v, %d buffers taken", buf, err, taken)
	}
	if _, err := w.WriteString("0123456789"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"01234567", "89"} { // although the deadline has passed
		if buf, n, err := sandbox.ReadReady(r, get); err != nil || string(buf[:n]) != want {
			t.Fatalf("%q %v", buf[:n], err)
		}
	}
	w.Close()
	if _, n, err := sandbox.ReadReady(r, get); n != 0 || err != io.EOF {
		t.Fatalf("end: %d %v", n, err)
	}
	r.Close()
	if _, _, err := sandbox.ReadReady(r, get); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestReadReadyWaits(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got := make(chan error, 2)
	read := func() {
		buf, n, err := sandbox.ReadReady(r, func() []byte { return make([]byte, 8) })
		if err == nil && string(buf[:n]) != "x" {
			err = errors.New("wrong bytes")
		}
		got <- err
	}
	go read()
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	go read()
	r.Close()
	if err := <-got; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed while it waited: %v", err)
	}
}

func TestTryWrite(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	total, block := 0, make([]byte, 4096)
	for {
		n, err := sandbox.TryWrite(w, block)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		total += n
	}
	if total != 64<<10 {
		t.Logf("the pipe took %d bytes", total)
	}
	if err := w.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := sandbox.WaitWritable(w); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a full pipe: %v", err)
	}
	_ = w.SetWriteDeadline(time.Time{})
	writable := make(chan error, 1)
	go func() { writable <- sandbox.WaitWritable(w) }()
	if _, err := io.ReadFull(r, block); err != nil {
		t.Fatal(err)
	}
	if err := <-writable; err != nil {
		t.Fatal(err)
	}
	r.Close()
	if n, err := sandbox.TryWrite(w, block); n != 0 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("nobody reads: %d %v", n, err)
	}
	if err := sandbox.WaitWritable(w); err != nil {
		t.Errorf("waiting to write to nobody: %v", err)
	}
	w.Close()
	if _, err := sandbox.TryWrite(w, block); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func BenchmarkReadReady(b *testing.B) {
	for _, size := range []int{1, 4 << 10, 64 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r, w, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			buf, data := make([]byte, 64<<10), make([]byte, size)
			get := func() []byte { return buf }
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := sandbox.TryWrite(w, data); n != size || err != nil {
					b.Fatal(n, err)
				}
				if _, n, err := sandbox.ReadReady(r, get); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func BenchmarkStartTrue(b *testing.B) {
	for _, kind := range []string{sandbox.TreeKillCgroup, sandbox.TreeKillScan} {
		b.Run(kind, func(b *testing.B) {
			d, err := sandbox.NewProcess(b.Context(), sandbox.Config{Root: b.TempDir(), TreeKill: kind})
			if err != nil {
				b.Skip(err)
			}
			defer d.Close()
			box := sandboxtest.Box(b, d, "l")
			for b.Loop() {
				p, err := box.Start(b.Context(), sandbox.Command{Argv: []string{"true"}})
				if err != nil {
					b.Fatal(err)
				}
				sandboxtest.Finish(b, p, time.Minute)
			}
		})
	}
}

// A root is emptied, so a directory with somebody's files in it is refused and
// left as it was; in a root of ours only sandboxes are removed.
func TestRoot_OfSomebodyElseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "thesis", "a.txt")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("hi"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: dir}); err == nil {
		_ = d.Close()
		t.Error("the directory was taken")
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}

	root := filepath.Join(dir, "root")
	d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(root, "notes")
	if err := os.Mkdir(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err = sandbox.NewProcess(t.Context(), sandbox.Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
