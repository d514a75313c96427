package sandboxtest

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// TestDriver runs the suite. open makes a driver of its own for each subtest
// and closes it with the test.
func TestDriver(t *testing.T, open func(t *testing.T) sandbox.Driver) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, sandbox.Driver)
	}{
		{"ProvisionIsIdempotent", provisionIsIdempotent},
		{"DestroyLeavesNothing", destroyLeavesNothing},
		{"CloseDestroysAll", closeDestroysAll},
		{"E002_Signaled", signaled},
		{"E003_StartFailed", startFailed},
		{"E012_WholeTree", wholeTree},
		{"E015_SignalReachesGroup", signalReachesGroup},
		{"E016_OutputOfTermHandler", outputOfTermHandler},
		{"E017_SignalAfterEnd", signalAfterEnd},
		{"E018_PipeHeldByDescendant", pipeHeldByDescendant},
		{"E019_StreamsEndBeforeExit", streamsEndBeforeExit},
		{"E020_NonblockingWriter", nonblockingWriter},
		{"E029_LongArgument", longArgument},
		{"E030_ArgvUntouched", argvUntouched},
		{"E031_StdinIsTheCommands", stdinIsTheCommands},
		{"E032_CwdAndEnvironment", cwdAndEnvironment},
		{"S032_HijackRefused", hijackRefused},
		{"S033_CwdOutside", cwdOutside},
		{"S034_Descriptors", descriptors},
		{"S038_NothingForTheNext", nothingForTheNext},
		{"S039_SignalNames", signalNames},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func provisionIsIdempotent(t *testing.T, d sandbox.Driver) {
	boxes := make([]sandbox.Sandbox, 8)
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() { boxes[i], _ = d.Provision(t.Context(), sandbox.Spec{Lease: "l"}) })
	}
	wg.Wait()
	for _, b := range boxes {
		if b == nil || b != boxes[0] || b.ProviderLeaseID() == "" {
			t.Fatalf("sandboxes of one lease differ: %v", boxes)
		}
	}
	if other := Box(t, d, "other"); other == boxes[0] || other.ProviderLeaseID() == boxes[0].ProviderLeaseID() {
		t.Error("two leases share a sandbox")
	}
	for range 2 {
		if err := boxes[0].Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if again := Box(t, d, "l"); again == boxes[0] {
		t.Error("a destroyed sandbox was handed out again")
	}
	if _, err := boxes[0].Start(t.Context(), Sh("true")); wire.CodeOf(err) != wire.CodeSandboxNotCached {
		t.Errorf("start in a destroyed sandbox: %v", err)
	}
}

func destroyLeavesNothing(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	p := Start(t, box, Sh(`pwd; echo output >&2; mkdir -p d/e; touch d/e/f; chmod 0 d/e d; setsid sleep 1000 & wait`))
	dir := Line(t, p.Stdout())
	Line(t, p.Stderr())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := box.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the sandbox's files are left: %v", err)
	}
	if r := Finish(t, p, time.Minute); r.Exit != wire.SignaledBy("KILL", false) {
		t.Errorf("ended with %s", r.Exit)
	}
}

func closeDestroysAll(t *testing.T, d sandbox.Driver) {
	var pids []int
	for i := range 3 {
		box, err := d.Provision(t.Context(), sandbox.Spec{Lease: strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		p := Start(t, box, Sh("sleep 1000"))
		pids = append(pids, p.Pid())
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range pids {
		assertGone(t, pid)
	}
	if _, err := d.Provision(t.Context(), sandbox.Spec{Lease: "l"}); wire.CodeOf(err) != wire.CodeWorkerDraining {
		t.Errorf("provision after close: %v", err)
	}
}

func signaled(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	for _, name := range []string{"KILL", "TERM", "SEGV"} {
		r := Run(t, box, Sh("ulimit -c 0; kill -"+name+" $$"))
		want, code := wire.SignaledBy(name, false), map[string]int{"KILL": 137, "TERM": 143, "SEGV": 139}[name]
		if r.Exit != want || r.Exit.ExitCode() != code {
			t.Errorf("%s: %s, exit code %d", name, r.Exit, r.Exit.ExitCode())
		}
	}
	for _, code := range []int{0, 1, 42, 255} {
		if r := Run(t, box, Sh("exit "+strconv.Itoa(code))); r.Exit.String() != wire.ExitedWith(code).String() {
			t.Errorf("exit %d: %s", code, r.Exit)
		}
	}
}

func startFailed(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	Run(t, box, Sh(`echo x >plain; printf '#!/no/such\n' >bad; printf '\001\002' >junk; chmod 755 bad junk; mkdir dir noentry; : >notdir; chmod 0 noentry`))
	cmd := func(argv0 string) sandbox.Command { return sandbox.Command{Argv: []string{argv0}} }
	for _, c := range []struct {
		name   string
		cmd    sandbox.Command
		reason string
		code   int
	}{
		{"no such name", cmd("no-such-program"), wire.StartNotFound, 127},
		{"no such path", cmd("./no-such"), wire.StartNotFound, 127},
		{"empty name", cmd(""), wire.StartNotFound, 127},
		{"mode 0644", cmd("./plain"), wire.StartNotExecutable, 126},
		{"mode 0644 in PATH", sandbox.Command{Argv: []string{"passwd"}, Env: map[string]string{"PATH": "/etc"}}, wire.StartNotExecutable, 126},
		{"directory", cmd("./dir"), wire.StartNotExecutable, 126},
		{"no interpreter", cmd("./bad"), wire.StartNotExecutable, 126},
		{"unknown format", cmd("./junk"), wire.StartNotExecutable, 126},
		{"no cwd", sandbox.Command{Argv: []string{"true"}, Cwd: "missing"}, wire.StartCwd, 125},
		{"cwd is a file", sandbox.Command{Argv: []string{"true"}, Cwd: "notdir"}, wire.StartCwd, 125},
	} {
		p, err := box.Start(t.Context(), c.cmd)
		se, ok := errors.AsType[*sandbox.StartError](err)
		if p != nil || !ok || se.Reason != c.reason {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
			continue
		}
		if got := wire.StartFailedFor(se.Reason).ExitCode(); got != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.code)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := box.Start(ctx, Sh("touch started")); !errors.Is(err, context.Canceled) {
		t.Errorf("start with a cancelled context: %v", err)
	}
}

// assertGone fails if a process has that pid. Only for pids that were just
// reaped: nobody else has them yet.
func assertGone(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is left (%v): %s", pid, err, cmdline(pid))
	}
}

func cmdline(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.ReplaceAll(string(b), "\x00", " ")
}
