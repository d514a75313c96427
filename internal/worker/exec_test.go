package worker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

func TestE001_E002_OwnEnds(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	for script, want := range map[string]string{
		"exit 0": "exited(0)", "exit 1": "exited(1)", "exit 42": "exited(42)", "exit 255": "exited(255)",
		"kill -KILL $$": "signaled(KILL, core=false)", "kill -TERM $$": "signaled(TERM, core=false)",
		"ulimit -c 0; kill -SEGV $$": "signaled(SEGV, core=false)",
	} {
		m := r.run(l, sh(script))
		wantOutcome(t, m.collect().exit.Outcome, want)
		wantOutcome(t, m.record().Outcome, want)
	}
}

func TestE003_NotStarted(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	for name, c := range map[string]struct {
		exec wire.Exec
		want string
	}{
		"no such file": {wire.Exec{Argv: []string{"no-such-program-at-all"}}, "start_failed(not_found)"},
		"mode 0644":    {wire.Exec{Argv: []string{"/etc/passwd"}}, "start_failed(not_executable)"},
		"no such cwd":  {wire.Exec{Argv: []string{"true"}, Cwd: "nowhere"}, "start_failed(cwd)"},
	} {
		m := r.draft(l, c.exec)
		r.ok(m.open())
		if m.opened.Outcome == nil {
			t.Fatalf("%s: the open reply has no outcome", name)
		}
		wantOutcome(t, *m.opened.Outcome, c.want)
		m.start()
		wantOutcome(t, m.collect().exit.Outcome, c.want)
		wantOutcome(t, m.record().Outcome, c.want)
		if s := r.w.Stats(); s.Running != 0 {
			t.Errorf("%s: %d commands run", name, s.Running)
		}
	}
	m := r.draft(l, wire.Exec{Argv: []string{"true"}, Cwd: "../.."})
	wantCode(t, m.open(), wire.CodeInvalidArgument)
	if s := r.w.Stats(); s.Channels-s.Running > 3 || s.Running != 0 {
		t.Errorf("a refused open left something: %+v", s)
	}
}

func TestE004_StopIsNotASignal(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), sh("echo $$; exec sleep 60"))
	pid := m.pid()
	r.ok(m.request(wire.Request{Verb: wire.VerbStop}))
	o := m.collect().exit.Outcome
	wantOutcome(t, o, "ended_by_request")
	if o.Code != nil || o.Signal != "" {
		t.Errorf("details %+v of a command that did not end by itself", o)
	}
	wantGone(t, pid)
}

func TestE008_Deadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	m := r.run(r.bind(), wire.Exec{Argv: []string{"sh", "-c", "echo $$; exec sleep 60"}, TimeoutMS: 1000})
	pid := m.pid()
	x := m.exit()
	took := time.Since(began)
	wantGone(t, pid)
	wantOutcome(t, x.Outcome, "timed_out")
	if took < time.Second || took > 6*time.Second {
		t.Errorf("seen after %s, want 1 s to 1 s + grace", took)
	}
	t.Logf("timed_out seen after %s", took)
}

func TestE010_DeadlineDespiteBlockedStdin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := piped("sleep", "60")
	e.TimeoutMS = 500
	m := r.run(r.bind(), e)
	n, err := m.end.Write(t.Context(), wire.Stdin, make([]byte, 10<<20))
	if err == nil || n == 10<<20 {
		t.Errorf("10 MiB were taken by a command that reads none (%d, %v)", n, err)
	}
	wantOutcome(t, m.exit().Outcome, "timed_out")
}

// family starts a shell that ignores TERM, a child, a grandchild under setsid
// and a double-forked great-grandchild; each adds to a file of its own.
const family = `
trap '' TERM
log() { while :; do echo x >>$1; sleep 0.05; done; }
echo $$
( echo $(exec sh -c 'echo $PPID'); log child ) &
setsid sh -c 'echo $$; while :; do echo x >>grandchild; sleep 0.05; done' &
( setsid sh -c 'trap "" TERM; (echo $(exec sh -c "echo \$PPID"); while :; do echo x >>great; sleep 0.05; done) & ' & )
log shell
`

func TestE012_WholeTree(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{sandbox.TreeKillCgroup, sandbox.TreeKillScan} {
		t.Run(kind, func(t *testing.T) {
			root := t.TempDir()
			d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: root, TreeKill: kind})
			if err != nil {
				t.Skipf("SKIPPED: %s does not work on this machine: %v", kind, err)
			}
			defer d.Close()
			r := newRig(t, func(c *worker.Config) { c.Driver = d })
			l := r.bind()
			m := r.run(l, wire.Exec{Argv: []string{"sh", "-c", family}, TimeoutMS: 500, GraceMS: 300})
			pids := []int{m.pid(), m.pid(), m.pid(), m.pid()}
			wantOutcome(t, m.exit().Outcome, "timed_out")
			for _, pid := range pids {
				wantGone(t, pid)
			}
			files, err := filepath.Glob(filepath.Join(root, l.ProviderLeaseID, "root", "*"))
			if err != nil || len(files) != 4 {
				t.Errorf("%d of 4 processes wrote (%v)", len(files), err)
			}
			before := sizes(t, files)
			m = r.run(l, sh("sleep 0.3"))
			m.collect()
			if after := sizes(t, files); after != before {
				t.Errorf("the files grew from %d to %d bytes after the end", before, after)
			}
			r.ok(r.stop())
		})
	}
}

func sizes(t *testing.T, files []string) (sum int64) {
	t.Helper()
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

func TestE015_InterruptReachesTheGroup(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), sh(`
trap 'echo INT shell; exit 3' INT
trap 'echo OTHER' HUP TERM
sh -c 'trap "echo INT child; exit 0" INT; trap "echo OTHER" HUP TERM; echo ready; while :; do sleep 0.02; done'
while :; do sleep 0.02; done`))
	if got := m.line(); got != "ready" {
		t.Fatal(got)
	}
	r.ok(m.request(wire.Request{Verb: wire.VerbSignal, Signal: "INT"}))
	res := m.collect()
	if got := string(res.stdout); got != "INT child\nINT shell\n" {
		t.Errorf("the signals logged are %q", got)
	}
	wantOutcome(t, res.exit.Outcome, "exited(3)")
}

func TestE016_OutputAndCodeOfATermHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.run(r.bind(), sh(`
trap 'for i in 1 2 3 4 5 6 7 8 9 10; do head -c 10000 /dev/zero; sleep 0.1; done; exit 4' TERM
echo ready; while :; do sleep 0.02; done`))
	if got := m.line(); got != "ready" {
		t.Fatal(got)
	}
	r.ok(m.request(wire.Request{Verb: wire.VerbStop, GraceMS: 5000}))
	res := m.collect()
	if len(res.stdout) != 100_000 {
		t.Errorf("%d bytes of 100,000", len(res.stdout))
	}
	wantOutcome(t, res.exit.Outcome, "ended_by_request")
	if c := res.exit.Outcome.Code; c == nil || *c != 4 {
		t.Errorf("its own code is %v, want 4", c)
	}
}

func TestE005_StopAroundTheExit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.bind()
	seen := map[string]int{}
	for i := range sized(40, 200) {
		m := r.run(l, sh("echo go; exec sleep 0.005"))
		m.line()
		timer := time.NewTimer(time.Duration(i%10) * time.Millisecond)
		<-timer.C
		if err := m.request(wire.Request{Verb: wire.VerbStop}); err != nil && wire.CodeOf(err) != wire.CodeChannelEnded {
			t.Fatal(err)
		}
		told := m.collect().exit.Outcome.String()
		wantOutcome(t, m.record().Outcome, told)
		if told != "exited(0)" && told != "ended_by_request" {
			t.Errorf("outcome %s", told)
		}
		seen[told]++
	}
	t.Log(seen)
}

func TestShorterGraceCounts(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), sh("trap '' TERM; echo $$; while :; do sleep 0.05; done"))
	pid := m.pid()
	r.ok(m.request(wire.Request{Verb: wire.VerbStop, GraceMS: 3_600_000}))
	r.ok(m.request(wire.Request{Verb: wire.VerbStop, GraceMS: 1}))
	wantOutcome(t, m.collect().exit.Outcome, "ended_by_request")
	wantGone(t, pid)
}

func TestRequestsAreChecked(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), sh("sleep 60"))
	for _, q := range []wire.Request{
		{Verb: wire.VerbSignal, Signal: "NOPE"}, {Verb: wire.VerbResize, Cols: 80, Rows: 24},
		{Verb: "dance"},
	} {
		wantCode(t, m.request(q), wire.CodeInvalidArgument)
	}
	r.ok(m.request(wire.Request{Verb: wire.VerbSignal, Signal: "KILL"}))
	wantOutcome(t, m.collect().exit.Outcome, "signaled(KILL, core=false)")
}

func TestE018_PipeHeldByDescendant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	m := r.run(r.bind(), sh("sleep 1000 & echo $!; echo hi"))
	pid := m.pid()
	if got := m.line(); got != "hi" {
		t.Errorf("stdout %q", got)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("hi came after %s", took)
	}
	res := m.collect()
	took := time.Since(began)
	wantGone(t, pid)
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	if res.exit.Outcome.Drain != wire.DrainHeld || len(res.stdout) != 0 {
		t.Errorf("drain %q, more output %q", res.exit.Outcome.Drain, res.stdout)
	}
	if took < 1900*time.Millisecond || took > 5*time.Second {
		t.Errorf("the end came after %s, want 2 s to 3 s", took)
	}
	t.Logf("the end came after %s", took)
}

func TestE019_StreamsEndBeforeTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.run(r.bind(), sh("exec >&- 2>&-; sleep 1; exit 5"))
	began := time.Now()
	m.read(wire.Stdout)
	m.read(wire.Stderr)
	if x, _ := m.end.Exit(); x != nil {
		t.Error("EXIT came with the ends of the streams")
	}
	t.Logf("streams ended after %s", time.Since(began))
	wantOutcome(t, m.exit().Outcome, "exited(5)")
}

func TestE021_ExecuteWithoutStdin(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), wire.Exec{Mode: wire.ModeExecute, Argv: []string{"cat"}})
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	if len(res.stdout) != 0 {
		t.Errorf("stdout %q", res.stdout)
	}
}

func TestExecuteStdin(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	body := bytes.Repeat([]byte("x"), 200<<10) // more than a pipe holds
	m := r.run(l, wire.Exec{Mode: wire.ModeExecute, Argv: []string{"wc", "-c"}, Stdin: wire.StdinPipe, StdinData: body})
	if got := strings.TrimSpace(string(m.collect().stdout)); got != strconv.Itoa(len(body)) {
		t.Errorf("of a body of %d bytes the command read %s", len(body), got)
	}
	l.ProviderLeaseID = "" // a one-shot execution finds the sandbox by lease id
	m = r.run(l, wire.Exec{Mode: wire.ModeExecute, Argv: []string{"wc", "-c"}, Stdin: wire.StdinPipe})
	m.write(string(make([]byte, 1<<20)))
	m.end.CloseStream(wire.Stdin)
	if got := strings.TrimSpace(string(m.collect().stdout)); got != strconv.Itoa(1<<20) {
		t.Errorf("of frames of 1 MiB the command read %s", got)
	}
}

func TestE029_LongArgument(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	e := wire.Exec{Argv: []string{"sh", "-c", `printf %s "$1" | wc -c`, "sh", strings.Repeat("a", 127<<10)}}
	if got := strings.TrimSpace(string(r.run(l, e).collect().stdout)); got != strconv.Itoa(127<<10) {
		t.Errorf("%s bytes reached the command", got)
	}
	e.Argv[4] = strings.Repeat("a", 129<<10)
	wantCode(t, r.draft(l, e).open(), wire.CodeInvalidArgument)
}

func TestE030_ArgvUntouched(t *testing.T) {
	r := newRig(t)
	args := []string{"a b", "it's", "$(id)", "*", "\n", ""}
	res := r.run(r.bind(), wire.Exec{Argv: append([]string{"sh", "-c", `for a; do printf '<%s>' "$a"; done`, "sh"}, args...)}).collect()
	want := "<" + strings.Join(args, "><") + ">"
	if string(res.stdout) != want {
		t.Errorf("stdout %q, want %q", res.stdout, want)
	}
}

func TestE032_CwdAndEnvironment(t *testing.T) {
	t.Setenv("WEFT_TEST_OF_THE_WORKER", "secret")
	r := newRig(t)
	l := r.bind()
	r.run(l, sh("mkdir -p sub/dir")).collect()
	res := r.run(l, wire.Exec{Argv: []string{"sh", "-c", "pwd; env >&2"}, Cwd: "sub/dir", Env: map[string]string{"A": "1"}}).collect()
	if got := string(res.stdout); !strings.HasSuffix(got, filepath.Join("/", "root", "sub", "dir")+"\n") {
		t.Errorf("directory %q", got)
	}
	if env := "\n" + string(res.stderr); !strings.Contains(env, "\nA=1\n") || strings.Contains(env, "WEFT_TEST_OF_THE_WORKER") {
		t.Errorf("environment %q", env)
	}
}

func TestC037_LimitsEndTheTree(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, wire.Exec{Argv: []string{"sh", "-c", "echo $$; exec yes"}, MaxOutput: 131_072})
	pid := m.pid()
	res := m.collect()
	wantGone(t, pid)
	wantOutcome(t, res.exit.Outcome, "limit_exceeded(total_bytes)")
	if got := res.exit.Totals.Stdout; got != 131_072 {
		t.Errorf("%d bytes passed, want 131,072", got)
	}
	began := time.Now()
	m = r.run(l, wire.Exec{Argv: []string{"sh", "-c", "echo $$; exec sleep 60"}, LifetimeMS: 500})
	pid = m.pid()
	wantOutcome(t, m.collect().exit.Outcome, "limit_exceeded(lifetime)")
	wantGone(t, pid)
	if took := time.Since(began); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("the lifetime of 500 ms ended after %s", took)
	}
}
