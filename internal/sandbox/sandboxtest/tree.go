package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// family starts a shell, a child deaf to TERM, a grandchild under setsid and a
// great-grandchild forked twice. Each writes its pid to a file of its own, adds
// lines to another, and the shell says "ready" when all four have begun.
const family = `
loop() { trap '' TERM; echo $$ >$1.pid; while :; do echo x >>$1.log; sleep 0.1; done; }
if [ -n "$1" ]; then loop $1; fi
rm -f *.pid *.log
sh -c "$SELF" sh child & 
setsid sh -c "$SELF" sh setsid </dev/null >/dev/null 2>&1 &
(setsid sh -c '(sh -c "$SELF" sh double </dev/null >/dev/null 2>&1 &)' &)
for n in child setsid double; do while ! [ -s $n.pid ] || ! [ -s $n.log ]; do sleep 0.02; done; done
echo $$ >main.pid
pwd
while :; do echo x >>main.log; sleep 0.1; done
`

func startFamily(t *testing.T, box sandbox.Sandbox) (p *sandbox.Process, dir string, pids []int) {
	t.Helper()
	cmd := Sh(family)
	cmd.Env = map[string]string{"SELF": family}
	p = Start(t, box, cmd)
	dir = Line(t, p.Stdout())
	for _, name := range []string{"main", "child", "setsid", "double"} {
		b, err := os.ReadFile(filepath.Join(dir, name+".pid"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if cmdline(pid) == "" {
			t.Fatalf("%s is not running", name)
		}
		pids = append(pids, pid)
	}
	return p, dir, pids
}

func wholeTree(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	neighbour := Start(t, box, Sh("echo up; sleep 1000"))
	Line(t, neighbour.Stdout())
	for name, end := range map[string]func(*sandbox.Process) error{
		"stop": func(p *sandbox.Process) error { return p.Stop(t.Context(), 300*time.Millisecond) },
		"kill": func(p *sandbox.Process) error { return p.Kill(t.Context()) },
	} {
		p, dir, pids := startFamily(t, box)
		if err := end(p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		size := logSizes(t, dir)
		for _, pid := range pids[1:] {
			if state := procState(pid); state != "" && state != "Z" {
				t.Errorf("%s: process %d is left in state %s: %s", name, pid, state, cmdline(pid))
			}
		}
		select {
		case <-p.Done():
		default:
			t.Errorf("%s: the command itself is not gone", name)
		}
		if r := Finish(t, p, time.Minute); r.Held {
			t.Errorf("%s: nothing was left, and yet the drain bound was used", name)
		}
		assertGone(t, pids[0])
		if now := logSizes(t, dir); now != size {
			t.Errorf("%s: the logs grew from %d to %d bytes", name, size, now)
		}
	}
	if err := neighbour.Signal("0"); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("signal 0: %v", err)
	}
	select {
	case <-neighbour.Done():
		t.Error("the end of one command ended its neighbour")
	default:
	}
}

func logSizes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	for _, name := range []string{"main", "child", "setsid", "double"} {
		if fi, err := os.Stat(filepath.Join(dir, name+".log")); err == nil {
			sum += fi.Size()
		}
	}
	return sum
}

// procState is the state letter of a process, "" when there is none.
func procState(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	return string(b[bytes.LastIndexByte(b, ')')+2:][:1])
}

func signalReachesGroup(t *testing.T, d sandbox.Driver) {
	// The child is no shell: one without job control starts background commands
	// deaf to INT, and a trap of a shell cannot undo that.
	const child = `
use strict;
sub note { open my $f, ">>", "log"; print $f "child $_[0]\n"; close $f }
$SIG{INT} = sub { note("INT"); exit 0 };
$SIG{HUP} = $SIG{TERM} = sub { note("other") };
$| = 1; print "up\n"; sleep 1 while 1`
	const script = `
trap 'wait $child; echo shell INT >>log; exit 7' INT
trap 'echo shell other >>log' HUP TERM
perl -e "$1" &
child=$!
wait $child`
	box := Box(t, d, "l")
	p := Start(t, box, Sh(script, child))
	Line(t, p.Stdout())
	if err := p.Signal("INT"); err != nil {
		t.Fatal(err)
	}
	if r := Finish(t, p, time.Minute); r.Exit.String() != "exited(7)" {
		t.Errorf("ended with %s: %s", r.Exit, r.Stderr)
	}
	log := string(Run(t, box, Sh("sort log")).Stdout)
	if log != "child INT\nshell INT\n" {
		t.Errorf("signals seen: %q", log)
	}
}

func outputOfTermHandler(t *testing.T, d sandbox.Driver) {
	p := Start(t, Box(t, d, "l"), Sh(`trap 'for i in 1 2 3 4 5; do head -c 20000 /dev/zero; sleep 0.05; done; exit 4' TERM; echo up; while :; do sleep 0.02; done`))
	Line(t, p.Stdout())
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(t.Context(), Limit) }()
	r := Finish(t, p, time.Minute)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if len(r.Stdout) != 100_000 || r.Exit.String() != "exited(4)" {
		t.Errorf("%d bytes, %s", len(r.Stdout), r.Exit)
	}
}

func signalAfterEnd(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	p := Start(t, box, Sh("exit 3"))
	<-p.Done()
	if err := p.Signal("TERM"); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	Finish(t, p, time.Minute)
	if err := p.Signal("TERM"); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after close: %v", err)
	}
	if err := errors.Join(p.Stop(t.Context(), time.Minute), p.Kill(t.Context()), p.Close(context.Background())); err != nil {
		t.Errorf("stop, kill and close after close: %v", err)
	}
	if p.Exit().String() != "exited(3)" {
		t.Errorf("outcome changed to %s", p.Exit())
	}
}

func pipeHeldByDescendant(t *testing.T, d sandbox.Driver) {
	p := Start(t, Box(t, d, "l"), Sh("sleep 1000 & echo $!; echo hi"))
	pid, _ := strconv.Atoi(Line(t, p.Stdout()))
	start := time.Now()
	r := Finish(t, p, 200*time.Millisecond)
	t.Logf("ended after %v", time.Since(start))
	if string(r.Stdout) != "hi\n" || r.Exit.String() != "exited(0)" || !r.Held || r.Exit.Drain != wire.DrainHeld {
		t.Errorf("%q, %s, drain %q", r.Stdout, r.Exit, r.Exit.Drain)
	}
	if took := time.Since(start); took < 200*time.Millisecond || took > 2*time.Second {
		t.Errorf("ended after %v", took)
	}
	if state := procState(pid); state != "" && state != "Z" {
		t.Error("the sleeper is alive")
	}
}

func streamsEndBeforeExit(t *testing.T, d sandbox.Driver) {
	p := Start(t, Box(t, d, "l"), Sh("exec >&- 2>&-; read x; exit 5"))
	if p.Stdin() != nil {
		t.Fatal("a command without standard input has one")
	}
	if r := Finish(t, p, time.Minute); r.Exit.String() != "exited(5)" || r.Held {
		t.Errorf("without stdin: %s", r.Exit)
	}
	cmd := Sh("exec >&- 2>&-; read x; exit 5")
	cmd.Stdin = wire.StdinPipe
	p = Start(t, Box(t, d, "l"), cmd)
	for _, f := range []*os.File{p.Stdout(), p.Stderr()} {
		if all := readAll(t, f); len(all) != 0 {
			t.Errorf("read %q", all)
		}
	}
	select {
	case <-p.Done():
		t.Fatal("the command ended with its streams")
	default:
	}
	if n, err := sandbox.TryWrite(p.Stdin(), []byte("x\n")); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if r := Finish(t, p, time.Minute); r.Exit.String() != "exited(5)" || r.Held {
		t.Errorf("with stdin: %s, held %v", r.Exit, r.Held)
	}
}

func signalNames(t *testing.T, d sandbox.Driver) {
	p := Start(t, Box(t, d, "l"), Sh("sleep 1000"))
	for _, name := range []string{"0", "-1", "9999", "SIGFOO", "", "9"} {
		if err := p.Signal(name); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("signal %q: %v", name, err)
		}
	}
	if err := p.Signal("SIGKILL"); err != nil {
		t.Error(err)
	}
	if r := Finish(t, p, time.Minute); r.Exit != wire.SignaledBy("KILL", false) {
		t.Errorf("ended with %s", r.Exit)
	}
}
