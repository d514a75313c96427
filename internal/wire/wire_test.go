package wire

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
)

type pin struct {
	name      string
	got, want any
}

// pins lists every exported constant with its literal value, so that none is
// renumbered or renamed by accident.
func pins() []pin {
	return slices.Concat(sizePins(), framePins(), codePins(), wordPins())
}

func sizePins() []pin {
	return []pin{
		{"Version", Version, 1},
		{"HeaderSize", HeaderSize, 56},
		{"MaxPayload", MaxPayload, 65536},
		{"MaxFrame", MaxFrame, 65592},
		{"SecretSize", SecretSize, 32},
		{"KeySize", KeySize, 32},
		{"TagSize", TagSize, 16},
		{"StateSize", StateSize, 125},
		{"FencedSize", FencedSize, 37},
		{"StdinClosedSize", StdinClosedSize, 53},
		{"GoneSize", GoneSize, 17},
		{"MaxRequest", MaxRequest, 65536},
		{"KeepaliveMax", KeepaliveMax, 500},
		{"MaxExecBody", MaxExecBody, 524288},
		{"MaxArgv", MaxArgv, 1024},
		{"MaxArg", MaxArg, 131072},
		{"MaxEnv", MaxEnv, 256},
		{"MaxCwd", MaxCwd, 4096},
		{"MaxOpenBody", MaxOpenBody, 707242},
		{"MaxControlBody", MaxControlBody, 65536},
		{"MaxBeat", MaxBeat, 300},
		{"MaxReplay", MaxReplay, 1048576},
		{"DefaultOutputKept", DefaultOutputKept, 1048576},
		{"DefaultKillAfter", DefaultKillAfter, 30 * time.Second},
		{"DefaultGrace", DefaultGrace, 5 * time.Second},
		{"ExitTimedOut", ExitTimedOut, 124},
		{"ExitRefused", ExitRefused, 125},
		{"ExitNotExecutable", ExitNotExecutable, 126},
		{"ExitNotFound", ExitNotFound, 127},
		{"ExitLost", ExitLost, 255},
	}
}

func framePins() []pin {
	return []pin{
		{"FrameStdin", FrameStdin, FrameType(1)},
		{"FrameStdout", FrameStdout, FrameType(2)},
		{"FrameStderr", FrameStderr, FrameType(3)},
		{"FrameEOF", FrameEOF, FrameType(4)},
		{"FrameExit", FrameExit, FrameType(5)},
		{"FrameReset", FrameReset, FrameType(6)},
		{"StreamNone", StreamNone, Stream(0)},
		{"Stdin", Stdin, Stream(1)},
		{"Stdout", Stdout, Stream(2)},
		{"Stderr", Stderr, Stream(3)},
		{"ControlFrame", ControlFrame, ControlKind(1)},
		{"ControlCredit", ControlCredit, ControlKind(2)},
		{"ControlProbe", ControlProbe, ControlKind(3)},
		{"ControlState", ControlState, ControlKind(4)},
		{"ControlRequest", ControlRequest, ControlKind(5)},
		{"ControlAnswer", ControlAnswer, ControlKind(6)},
		{"ControlFenced", ControlFenced, ControlKind(7)},
		{"ControlStdinClosed", ControlStdinClosed, ControlKind(8)},
		{"ControlGone", ControlGone, ControlKind(9)},
		{"VerbSignal", VerbSignal, "signal"},
		{"VerbStop", VerbStop, "stop"},
		{"VerbResize", VerbResize, "resize"},
		{"VerbInterrupt", VerbInterrupt, "interrupt"},
		{"VerbAttach", VerbAttach, "attach"},
		{"VerbDetach", VerbDetach, "detach"},
		{"VerbRepair", VerbRepair, "repair"},
	}
}

func codePins() []pin {
	return []pin{
		{"CodeInvalidArgument", CodeInvalidArgument, Code("INVALID_ARGUMENT")},
		{"CodePayloadTooLarge", CodePayloadTooLarge, Code("PAYLOAD_TOO_LARGE")},
		{"CodeNotFound", CodeNotFound, Code("NOT_FOUND")},
		{"CodeLeaseExpired", CodeLeaseExpired, Code("LEASE_EXPIRED")},
		{"CodeLeaseReleased", CodeLeaseReleased, Code("LEASE_RELEASED")},
		{"CodeLeaseLost", CodeLeaseLost, Code("LEASE_LOST")},
		{"CodeStaleEpoch", CodeStaleEpoch, Code("STALE_EPOCH")},
		{"CodeDriverNotRegistered", CodeDriverNotRegistered, Code("DRIVER_NOT_REGISTERED")},
		{"CodeDriverNoDuplex", CodeDriverNoDuplex, Code("DRIVER_NO_DUPLEX")},
		{"CodeCapabilityDenied", CodeCapabilityDenied, Code("DUPLEX_CHANNEL_CAPABILITY_DENIED")},
		{"CodeDuplexUnsupported", CodeDuplexUnsupported, Code("DUPLEX_UNSUPPORTED_FOR_LEASE")},
		{"CodeMetadataIncomplete", CodeMetadataIncomplete, Code("LEASE_METADATA_INCOMPLETE")},
		{"CodeRouteBusy", CodeRouteBusy, Code("DUPLEX_CHANNEL_ROUTE_BUSY")},
		{"CodeQuotaExceeded", CodeQuotaExceeded, Code("QUOTA_EXCEEDED")},
		{"CodeUnavailable", CodeUnavailable, Code("UNAVAILABLE")},
		{"CodeConflict", CodeConflict, Code("CONFLICT")},
		{"CodeWorkerNotRunning", CodeWorkerNotRunning, Code("WORKER_NOT_RUNNING")},
		{"CodeWorkerDraining", CodeWorkerDraining, Code("WORKER_DRAINING")},
		{"CodeSandboxNotCached", CodeSandboxNotCached, Code("SANDBOX_NOT_CACHED")},
		{"CodeOpenFailed", CodeOpenFailed, Code("DUPLEX_CHANNEL_OPEN_FAILED")},
		{"CodeStoreRolledBack", CodeStoreRolledBack, Code("STORE_ROLLED_BACK")},
		{"CodeFenced", CodeFenced, Code("FENCED")},
		{"CodeNoWorker", CodeNoWorker, Code("NO_WORKER")},
		{"CodeUnauthenticated", CodeUnauthenticated, Code("UNAUTHENTICATED")},
		{"CodePermissionDenied", CodePermissionDenied, Code("PERMISSION_DENIED")},
		{"CodeUnsupportedVersion", CodeUnsupportedVersion, Code("UNSUPPORTED_VERSION")},
		{"CodeDeadlineExceeded", CodeDeadlineExceeded, Code("DEADLINE_EXCEEDED")},
		{"CodeTooManyRequests", CodeTooManyRequests, Code("TOO_MANY_REQUESTS")},
		{"CodeInternal", CodeInternal, Code("INTERNAL")},
		{"CodeStdinClosed", CodeStdinClosed, Code("STDIN_CLOSED")},
		{"CodeChannelEnded", CodeChannelEnded, Code("CHANNEL_ENDED")},
	}
}

func wordPins() []pin {
	return []pin{
		{"Exited", Exited, OutcomeKind("exited")},
		{"Signaled", Signaled, OutcomeKind("signaled")},
		{"TimedOut", TimedOut, OutcomeKind("timed_out")},
		{"EndedByRequest", EndedByRequest, OutcomeKind("ended_by_request")},
		{"ClientLost", ClientLost, OutcomeKind("client_lost")},
		{"LeaseExpired", LeaseExpired, OutcomeKind("lease_expired")},
		{"LeaseReleased", LeaseReleased, OutcomeKind("lease_released")},
		{"LeaseLost", LeaseLost, OutcomeKind("lease_lost")},
		{"WorkerLost", WorkerLost, OutcomeKind("worker_lost")},
		{"WorkerDrained", WorkerDrained, OutcomeKind("worker_drained")},
		{"Revoked", Revoked, OutcomeKind("revoked")},
		{"LimitExceeded", LimitExceeded, OutcomeKind("limit_exceeded")},
		{"Stalled", Stalled, OutcomeKind("stalled")},
		{"StartFailed", StartFailed, OutcomeKind("start_failed")},
		{"DataLost", DataLost, OutcomeKind("data_lost")},
		{"Unknown", Unknown, OutcomeKind("unknown")},
		{"StartNotFound", StartNotFound, "not_found"},
		{"StartNotExecutable", StartNotExecutable, "not_executable"},
		{"StartCwd", StartCwd, "cwd"},
		{"StartOther", StartOther, "other"},
		{"DrainHeld", DrainHeld, "held by descendant"},
		{"ModeDuplex", ModeDuplex, Mode("duplex")},
		{"ModeExecute", ModeExecute, Mode("execute")},
		{"StdinNone", StdinNone, StdinKind("none")},
		{"StdinPipe", StdinPipe, StdinKind("pipe")},
		{"StdinPTY", StdinPTY, StdinKind("pty")},
		{"KillAfter", KillAfter, DisconnectPolicy("kill_after")},
		{"Keep", Keep, DisconnectPolicy("keep")},
		{"CapExecute", CapExecute, Capability("execute")},
		{"CapDuplexCommandStream", CapDuplexCommandStream, Capability("duplexCommandStream")},
		{"CapIncrementalSessionOutput", CapIncrementalSessionOutput, Capability("incrementalSessionOutput")},
		{"CapConcurrentSyncOperations", CapConcurrentSyncOperations, Capability("concurrentSyncOperations")},
		{"MetadataSandboxProviderPlugin", MetadataSandboxProviderPlugin, "sandboxProviderPlugin"},
		{"MetadataPluginID", MetadataPluginID, "pluginId"},
		{"MetadataProvider", MetadataProvider, "provider"},
		{"WorkerReady", WorkerReady, WorkerState("ready")},
		{"WorkerDraining", WorkerDraining, WorkerState("draining")},
		{"WorkerGoodbye", WorkerGoodbye, WorkerState("goodbye")},
		{"HeaderStreamSeq", HeaderStreamSeq, "Weft-Stream-Seq"},
		{"HeaderNextStreamSeq", HeaderNextStreamSeq, "Weft-Next-Stream-Seq"},
		{"HeaderLastFrameSeq", HeaderLastFrameSeq, "Weft-Last-Frame-Seq"},
		{"BindProvisioning", BindProvisioning, "provisioning"},
		{"BindBound", BindBound, "bound"},
	}
}

func TestConstantsArePinned(t *testing.T) {
	pinned := map[string]bool{}
	for _, p := range pins() {
		if p.got != p.want {
			t.Errorf("%s is %#v; the wire has %#v", p.name, p.got, p.want)
		}
		pinned[p.name] = true
	}
	for _, name := range exportedConstants(t) {
		if !pinned[name] {
			t.Errorf("constant %s is not pinned; add it with its literal value", name)
		}
	}
	if subjects.Up != 1 || subjects.Down != 2 {
		t.Errorf("directions are %d and %d in the nonce; the wire has 1 and 2", subjects.Up, subjects.Down)
	}
}

func TestSignalNumbersArePinned(t *testing.T) {
	const want = "1 HUP 2 INT 3 QUIT 4 ILL 5 TRAP 6 ABRT 7 BUS 8 FPE 9 KILL 10 USR1 11 SEGV 12 USR2 13 PIPE " +
		"14 ALRM 15 TERM 16 STKFLT 17 CHLD 18 CONT 19 STOP 20 TSTP 21 TTIN 22 TTOU 23 URG 24 XCPU 25 XFSZ " +
		"26 VTALRM 27 PROF 28 WINCH 29 IO 30 PWR 31 SYS"
	var got []string
	for n := 1; n <= 31; n++ {
		name := SignalName(n)
		got = append(got, fmt.Sprintf("%d %s", n, name))
		if SignalNumber(name) != n || SignalNumber("SIG"+name) != n {
			t.Errorf("SignalNumber(%q) is %d; want %d", name, SignalNumber(name), n)
		}
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("signals are\n%s\nwant\n%s", s, want)
	}
}

// exportedConstants lists the exported constants of this package's source.
func exportedConstants(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, f := range parsePackage(t) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				for _, n := range s.(*ast.ValueSpec).Names {
					if n.IsExported() {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	if len(names) < 100 {
		t.Fatalf("found only %d constants; the search is broken", len(names))
	}
	return names
}

func parsePackage(t *testing.T) []*ast.File {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}
