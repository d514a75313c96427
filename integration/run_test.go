package integration

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runner runs weft run with what it is given.
type runner func(stdin string, args ...string) result

// bothWays runs f with weft on its own, and with coordinator and worker as
// processes beside it. Afterwards nothing is left of either.
func bothWays(t *testing.T, f func(t *testing.T, h *home, server []string)) {
	t.Run("one process", func(t *testing.T) {
		h := newHome(t)
		f(t, h, nil)
		h.clean()
	})
	t.Run("three processes", func(t *testing.T) {
		h := newHome(t)
		fab := h.fabric(nil, nil)
		f(t, h, []string{"--server", fab.url})
		fab.stop()
		h.clean()
	})
}

func (h *home) runner(server []string) runner {
	return func(stdin string, args ...string) result {
		h.t.Helper()
		return h.weft(stdin, append(append([]string{"run"}, server...), args...)...)
	}
}

func TestMainJob(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, h *home, server []string) {
		run := h.runner(server)
		run("hello weft\n", "--", "tr", "a-z", "A-Z").want(t, 0, "HELLO WEFT\n", "")
		if r := run("", "--", "sh", "-c", "echo out; echo err >&2; exit 7"); r != (result{7, "out\n", "err\n"}) {
			t.Errorf("%+v", r)
		}
		// E-032: the directory and the variable of the call.
		run("", "-e", "A=1", "--", "sh", "-c", "mkdir -p sub/dir && cd sub/dir && echo $A ${PWD##*/sub}").want(t, 0, "1 /dir\n", "")
	})
}

func TestE001E002E003_ExitStatus(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, h *home, server []string) {
		run := h.runner(server)
		for _, n := range []int{0, 1, 42, 255} {
			run("", "--", "sh", "-c", "exit "+strconv.Itoa(n)).want(t, n, "", "")
		}
		for sig, code := range map[string]int{"KILL": 137, "TERM": 143, "SEGV": 139} {
			run("", "--", "sh", "-c", "ulimit -c 0; kill -"+sig+" $$").want(t, code, "", "")
		}
		run("", "--", "nosuch").want(t, 127, "", "no such command")
		run("", "--", "/etc/passwd").want(t, 126, "", "cannot be executed")
		run("", "--cwd", "nosuch", "--", "true").want(t, 125, "", "working directory is missing")
	})
}

func TestE030_ArgvUntouched(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	args := []string{"a b", "it's", "$(id)", "*", "\n", ""}
	h.weft("", append([]string{"run", "--", "printf", `<%s>`}, args...)...).
		want(t, 0, "<"+strings.Join(args, "><")+">", "")
}

func TestC010C011_EndOfInput(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, h *home, server []string) {
		run := h.runner(server)
		run("abc", "--", "cat").want(t, 0, "abc", "")
		run("", "--", "wc", "-c").want(t, 0, "0\n", "")
		null := h.start("weft", append(append([]string{"run"}, server...), "--", "wc", "-c"), func(c *exec.Cmd) { c.Stdin = nil })
		if code := null.wait(); code != 0 || null.out.String() != "0\n" {
			t.Errorf("</dev/null: %d %q", code, null.out)
		}
		r := run("", "--", "sh", "-c", "cat; sleep 1; head -c 100000 /dev/zero")
		if r.code != 0 || len(r.stdout) != 100_000 || r.stderr != "" {
			t.Errorf("output long after the end of input: %d, %d bytes, %q", r.code, len(r.stdout), r.stderr)
		}
	})
}

// The end of the command is the end of weft, though its own standard input
// stays open and silent, be it a pipe or a terminal.
func TestC012_SilentInput(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric(nil, nil)
	check := func(name string, in *os.File) {
		t.Helper()
		p := h.start("weft", f.args("run", "--", "sh", "-c", "echo hi; date +%s%N"), func(c *exec.Cmd) { c.Stdin = in })
		code, now := p.wait(), time.Now()
		word, stamp, _ := strings.Cut(strings.TrimSpace(p.out.String()), "\n")
		ns, err := strconv.ParseInt(stamp, 10, 64)
		if code != 0 || word != "hi" || err != nil {
			t.Fatalf("%s: %d %q %q", name, code, p.out, p.err)
		}
		took := now.Sub(time.Unix(0, ns))
		t.Logf("%s: %v after the command", name, took)
		if took > 5*time.Second {
			t.Errorf("%s: weft ended %v after its command", name, took)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	check("pipe", r)
	check("terminal", terminal(t))
	f.stop()
}

// terminal is a terminal at which nobody types.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty
}

// random writes a file of random bytes and returns its digest.
func (h *home) random(size int64) (name, sum string) {
	h.t.Helper()
	name = h.path("random")
	f, err := os.Create(name)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	d := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, d), rand.Reader, size); err != nil {
		h.t.Fatal(err)
	}
	return name, fmt.Sprintf("%x", d.Sum(nil))
}

func TestBulk(t *testing.T) {
	size := scaled[int64](30e6, 300e6)
	bothWays(t, func(t *testing.T, h *home, server []string) {
		name, sum := h.random(size)
		in, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		d := sha256.New()
		began := time.Now()
		p := h.start("weft", append(append([]string{"run"}, server...), "--", "cat"), func(c *exec.Cmd) { c.Stdin, c.Stdout = in, d })
		if code := p.wait(); code != 0 || fmt.Sprintf("%x", d.Sum(nil)) != sum {
			t.Errorf("through cat: exit %d, digest %x, want %s; %s", code, d.Sum(nil), sum, p.err)
		}
		t.Logf("%d MB through cat: %.0f MB/s", size/1e6, float64(size)/1e6/time.Since(began).Seconds())

		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		d = sha256.New()
		p = h.start("weft", append(append([]string{"run"}, server...), "--", "cat", name), func(c *exec.Cmd) { c.Stdout = w })
		w.Close()
		if err := slowly(t.Context(), d, r, size, size/15, 5e6); err != nil {
			t.Errorf("slow reader: %v", err)
		}
		if code := p.wait(); code != 0 || fmt.Sprintf("%x", d.Sum(nil)) != sum {
			t.Errorf("slow reader: exit %d, digest %x, want %s; %s", code, d.Sum(nil), sum, p.err)
		}
	})
}

// C-015 for people: who reads no further hears the rest, and no command runs on
// for nobody.
func TestC015_ReaderOfOutputGoesAway(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	leave := func(script string) (int, string) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p := h.start("weft", []string{"run", "--", "sh", "-c", script}, func(c *exec.Cmd) { c.Stdout = w })
		w.Close()
		if _, err := io.ReadFull(r, make([]byte, 2)); err != nil {
			t.Error(err)
		}
		r.Close()
		return p.wait(), p.err.String()
	}
	if code, stderr := leave("echo; head -c 10000000 /dev/zero; echo done >&2; exit 4"); code != 4 || stderr != "done\n" {
		t.Errorf("%d %q", code, stderr)
	}
	if code, stderr := leave("exec yes"); code != 141 || stderr != "" {
		t.Errorf("yes: %d %q", code, stderr)
	}
	h.clean()
}

// The same as a signal that weft gets itself: all of its own stack goes with it.
func TestSignalsTearDown(t *testing.T) {
	t.Parallel()
	// Not a shell in its wait: dash misses an INT in the moment of a fork.
	const script = "sleep 300 & trap 'exit 130' INT; echo ready; while :; do sleep 0.05; done"
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			p := h.start("weft", []string{"run", "--", "sh", "-c", script})
			p.says(p.out, "ready")
			p.signal(sig)
			if got := p.wait(); got != code {
				t.Errorf("exit %d, want %d: %s", got, code, p.err)
			}
			h.clean()
			if pids := h.residents(); len(pids) != 0 {
				t.Errorf("left: %v", pids)
			}
		})
	}
	t.Run("nobody takes the output", func(t *testing.T) {
		t.Parallel()
		h := newHome(t)
		p := h.start("weft", []string{"run", "--grace=100ms", "--", "sh", "-c", "echo ready >&2; exec yes"}, withStoppedReader(t))
		p.says(p.err, "ready")
		h.blocked("yes")
		p.signal(syscall.SIGTERM)
		if got := p.wait(); got != 143 {
			t.Errorf("exit %d: %s", got, p.err)
		}
		h.clean()
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		h := newHome(t)
		p := h.start("weft", []string{"run", "--", "sleep", "300"})
		h.until("it has begun", func() bool {
			left, err := os.ReadDir(h.path("tmp"))
			return err == nil && len(left) > 0
		})
		p.signal(syscall.SIGTERM)
		if got := p.wait(); got != 143 {
			t.Errorf("exit %d: %s", got, p.err)
		}
		h.clean()
	})
}

// weft run alone opens no port.
func TestNoPort(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := h.start("weft", []string{"run", "--", "sh", "-c", "echo ready; cat"}, func(c *exec.Cmd) { c.Stdin = r })
	p.says(p.out, "ready")
	listening := map[string]bool{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
				listening["socket:["+f[9]+"]"] = true
			}
		}
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid()))
	if err != nil || len(fds) == 0 {
		t.Fatal(fds, err)
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && listening[link] {
			t.Errorf("it listens on %s", link)
		}
	}
	w.Close()
	if code := p.wait(); code != 0 {
		t.Error(code)
	}
}

// Other terminals find weft up; when it is gone they say what to do.
func TestUp(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	up := h.start("weft", []string{"up", "--listen", "127.0.0.1:0"})
	up.says(up.out, "Ctrl-C")
	h.weft("x", "run", "--", "cat").want(t, 0, "x", "")
	if r := h.weft("", "worker", "ls"); r.code != 0 || !strings.Contains(r.stdout, "live") {
		t.Errorf("%+v", r)
	}
	notes, err := filepath.Glob(h.path("run", "weft", "*.json"))
	if err != nil || len(notes) != 1 {
		t.Fatal(notes, err)
	}
	if info, err := os.Stat(notes[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	up.signal(syscall.SIGINT)
	if code := up.wait(); code != 0 {
		t.Errorf("up: %d %s", code, up.err)
	}
	h.weft("", "worker", "ls").want(t, 125, "", "run weft up")
	h.clean()
}
