package cli

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/wire"
)

func (r result) check(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || !strings.Contains(r.stderr, stderr) || stderr == "" && r.stderr != "" {
		t.Errorf("%d %q %q; want %d %q and in stderr %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}

// The whole of weft run in this process, and nothing left of it.
func TestRun(t *testing.T) {
	s := newShell(t)
	s.stdin = strings.NewReader("hello weft\n")
	s.weft("run", "--", "tr", "a-z", "A-Z").check(t, 0, "HELLO WEFT\n", "")
	s.stdin = strings.NewReader("")
	s.weft("run", "sh", "-c", "echo out; echo err >&2; exit 7").check(t, 7, "out\n", "err\n")
	s.weft("run", "-e", "A=1", "--timeout=200ms", "--grace=100ms", "--", "sh", "-c", "echo $A; exec sleep 60").check(t, 124, "1\n", "timeout")
	s.weft("run", "--", "nosuch").check(t, 127, "", "no such command")
	s.weft("run", "-w", "/etc", "--", "true").check(t, 125, "", "outside the sandbox")
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// started runs weft in the background until its command has printed "ready".
func (s *shell) started(t *testing.T, stdin io.Reader, args ...string) (<-chan result, *buffer) {
	t.Helper()
	s.stdin = stdin
	var out, errs buffer
	ready := out.has("ready\n")
	done := make(chan result, 1)
	go func() {
		code := Main(args, s.system(&out, &errs))
		done <- result{code, out.String(), errs.String()}
	}()
	select {
	case <-ready:
	case r := <-done:
		t.Fatalf("it ended: %+v", r)
	}
	return done, &out
}

func TestSignals(t *testing.T) {
	deaf := `trap 'echo int' INT; trap '' TERM; echo ready; while :; do sleep 0.05; done`
	t.Run("one INT is the command's", func(t *testing.T) {
		s := newShell(t)
		done, _ := s.started(t, strings.NewReader(""), "run", "--", "sh", "-c", `trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.05; done`)
		s.signal(syscall.SIGINT)
		(<-done).check(t, 5, "ready\nint\n", "")
	})
	t.Run("a second INT stops it", func(t *testing.T) {
		s := newShell(t)
		done, out := s.started(t, strings.NewReader(""), "run", "--grace=200ms", "--", "sh", "-c", deaf)
		heard := out.has("int\n")
		s.signal(syscall.SIGINT)
		<-heard
		s.signal(syscall.SIGINT)
		(<-done).check(t, 130, "ready\nint\n", "")
	})
	t.Run("a third leaves", func(t *testing.T) {
		s := newShell(t)
		done, out := s.started(t, strings.NewReader(""), "run", "--grace=1h", "--", "sh", "-c", deaf)
		heard := out.has("int\n")
		s.signal(syscall.SIGINT)
		<-heard
		s.signal(syscall.SIGINT)
		s.signal(syscall.SIGINT)
		if r := <-done; r.code != 130 {
			t.Errorf("%+v", r)
		}
	})
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(sig.String(), func(t *testing.T) {
			s := newShell(t)
			done, _ := s.started(t, strings.NewReader(""), "run", "--grace=200ms", "--", "sh", "-c", deaf)
			s.signal(sig)
			(<-done).check(t, code, "ready\n", "")
		})
	}
}

// The command has ended; that our standard input is open and silent does not matter.
func TestC012_SilentStdin(t *testing.T) {
	s := newShell(t)
	r, w := io.Pipe()
	defer w.Close()
	s.stdin = r
	s.weft("run", "--", "echo", "hi").check(t, 0, "hi\n", "")
}

// What can be known to be wrong without a server is refused without one.
func TestBadCommandLines(t *testing.T) {
	s := newShell(t)
	many := append([]string{"run", "--"}, strings.Fields(strings.Repeat("x ", wire.MaxArgv+1))...)
	large := []string{"run", "--"}
	for range 9 {
		large = append(large, strings.Repeat("x", 120<<10))
	}
	for name, args := range map[string][]string{
		"no command":     {"run", "--"},
		"empty command":  {"run", "--", ""},
		"NUL":            {"run", "--", "a\x00b"},
		"many arguments": many,
		"1 MB argv":      large,
		"long argument":  {"run", "--", "cat", strings.Repeat("x", wire.MaxArg+1)},
		"bad variable":   {"run", "--env", "A B=1", "--", "true"},
		"no variable":    {"run", "--env", "NOSUCH", "--", "true"},
		"label":          {"run", "--label", "a", "--", "true"},
		"timeout":        {"run", "--timeout=-1s", "--", "true"},
		"flag":           {"run", "--nosuch", "--", "true"},
		"two servers":    {"run", "-s", "x", "--context", "y", "--", "true"},
		"tenant":         {"run", "--tenant", "a.b", "--", "true"},
		"log level":      {"run", "--log-level", "loud", "--", "true"},
		"context":        {"run", "--context", "../../etc/passwd", "--", "true"},
		"lease id":       {"exec", "a.*", "--", "true"},
		"no dashes":      {"exec", "79993e29-0f9d-5302-968c-05f887252c48", "true"},
		"two leases":     {"open", "a", "b", "--", "true"},
		"info":           {"lease", "info", "a b"},
		"release":        {"lease", "release", ">"},
		"noun":           {"lease", "nosuch"},
		"command":        {"nosuch"},
		"output":         {"worker", "ls", "-o", "xml"},
		"listen":         {"up", "--listen", ""},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := s.weft(args...)
			if r.code != wire.ExitRefused || r.stdout != "" || !strings.HasPrefix(r.stderr, "weft: ") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%d %q %.300q", r.code, r.stdout, r.stderr)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestNoServer(t *testing.T) {
	s := newShell(t)
	for _, args := range [][]string{{"worker", "ls"}, {"lease", "ls"}, {"open", "79993e29-0f9d-5302-968c-05f887252c48", "--", "true"}} {
		s.weft(args...).check(t, 125, "", "run weft up")
	}
}

func TestNouns(t *testing.T) {
	s := newShell(t)
	s.up(t, fabric.Worker{ID: "one", Labels: map[string]string{"zone": "a"}})
	id := strings.TrimSpace(s.weft("lease", "acquire", "--label", "zone=a", "--environment", "test").stdout)
	if err := wire.CheckLeaseID(id); err != nil {
		t.Fatalf("acquire printed %q", id)
	}

	var info client.LeaseInfo
	unmarshal(t, s.weft("lease", "info", id, "-o", "json"), &info)
	if info.ID != id || info.State != "active" || info.Environment != "test" || info.Metadata["sandboxProviderPlugin"] != "local" {
		t.Errorf("info: %+v", info)
	}
	if r := s.weft("lease", "ls"); r.code != 0 || !strings.Contains(r.stdout, id) {
		t.Errorf("ls: %+v", r)
	}
	var workers struct{ Workers []client.WorkerInfo }
	unmarshal(t, s.weft("worker", "ls", "-o", "json"), &workers)
	if w := workers.Workers; len(w) != 1 || w[0].Worker != "one" || w[0].State != "live" || w[0].SlotsUsed != 1 {
		t.Errorf("workers: %+v", w)
	}

	s.stdin = strings.NewReader("in")
	s.weft("open", id, "--", "sh", "-c", "cat; exit 3").check(t, 3, "in", "")
	s.stdin = strings.NewReader("in")
	s.weft("exec", id, "--", "sh", "-c", "cat; echo e >&2; exit 4").check(t, 4, "in", "e\n")
	s.stdin = strings.NewReader("")
	s.weft("exec", id, "--", "cat").check(t, 0, "", "")

	s.weft("lease", "release", id).check(t, 0, "", "")
	s.weft("lease", "release", id).check(t, 0, "", "")
	s.weft("open", id, "--", "true").check(t, 125, "", "LEASE_RELEASED")
	s.weft("lease", "info", "00000000-0000-4000-8000-000000000000").check(t, 125, "", "NOT_FOUND")
	var none struct{ Leases []client.LeaseInfo }
	unmarshal(t, s.weft("lease", "ls", "-o", "json"), &none)
	if none.Leases == nil || len(none.Leases) != 0 {
		t.Errorf("leases after the release: %+v", none)
	}
}

func TestE023_ExecJSON(t *testing.T) {
	s := newShell(t)
	s.up(t, fabric.Worker{})
	id := strings.TrimSpace(s.weft("lease", "acquire").stdout)
	r := s.weft("exec", "-o", "json", "--keep", "65536", id, "--", "sh", "-c", "head -c 10000000 /dev/zero | tr '\\0' x; printf '\\377' >&2; exit 9")
	var got execResult
	unmarshal(t, result{0, r.stdout, r.stderr}, &got)
	if r.code != 9 || got.ExitCode != 9 || got.Lease != id || got.Outcome.Kind != client.Exited {
		t.Errorf("%d, %+v", r.code, got.Outcome)
	}
	if got.Stdout.Omitted != 9_934_464 || len(got.Stdout.Head) != 32_768 || len(got.Stdout.Tail) != 32_768 {
		t.Errorf("stdout: %d, %d left out, %d", len(got.Stdout.Head), got.Stdout.Omitted, len(got.Stdout.Tail))
	}
	if got.Stderr.Encoding != "base64" || got.Stderr.Head != "/w==" {
		t.Errorf("stderr: %+v", got.Stderr)
	}
}

func unmarshal(t *testing.T, r result, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), v); err != nil || r.code != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
}

// The lease of an inline worker has one-shot executions only, and is told so.
func TestInlineLease(t *testing.T) {
	s := newShell(t)
	s.up(t, fabric.Worker{Driver: "inline"})
	id := strings.TrimSpace(s.weft("lease", "acquire").stdout)
	r := s.weft("open", id, "--", "true")
	r.check(t, 125, "", "DUPLEX_UNSUPPORTED_FOR_LEASE")
	if !strings.Contains(r.stderr, "does not support duplex channels") {
		t.Errorf("%q", r.stderr)
	}
	s.weft("exec", id, "--", "echo", "once").check(t, 0, "once\n", "")
}

func TestUp(t *testing.T) {
	s := newShell(t)
	var out, errs buffer
	up := out.has("Ctrl-C stops it")
	done := make(chan int, 1)
	go func() { done <- Main([]string{"up", "--log-level", "error"}, s.system(&out, &errs)) }()
	select {
	case <-up:
	case code := <-done:
		t.Fatal(code, errs.String())
	}
	s.weft("run", "--", "echo", "over there").check(t, 0, "over there\n", "")
	s.signal(syscall.SIGINT)
	if code := <-done; code != 0 || errs.String() != "" {
		t.Errorf("%d %q", code, errs.String())
	}
	if left, err := filepath.Glob(filepath.Join(s.runtime, "*")); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestVersion(t *testing.T) {
	s := newShell(t)
	if r := s.weft("version"); r.code != 0 || !strings.HasPrefix(r.stdout, "weft "+coordinator.Version) {
		t.Errorf("%+v", r)
	}
	var v map[string]any
	unmarshal(t, s.weft("version", "-o", "json"), &v)
	if v["version"] != coordinator.Version || v["protocolVersion"] != float64(wire.Version) {
		t.Errorf("%v", v)
	}
}
