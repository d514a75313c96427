package worker_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

func TestF001_FirstBeatAtOnceAndReachable(t *testing.T) {
	r := prepareRig(t)
	began := time.Now()
	r.startWorker()
	r.until("register and a beat", func() bool { return len(r.registers) > 0 && len(r.beats) > 0 })
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the first beat came after %s", took)
	} else {
		t.Logf("the first beat came after %s", took)
	}
	// Sent the instant it is known, without waiting for Ready.
	if res := r.run(r.bind(), sh("echo hi")).collect(); string(res.stdout) != "hi\n" {
		t.Errorf("stdout %q", res.stdout)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q, b := r.registers[0], r.beats[0]
	if q.Worker != workerID || q.Instance != r.w.Instance() || q.Route != r.w.Route() || q.PluginID != "shell" ||
		len(q.Providers) != 1 || q.Providers[0].Driver != "process" || len(q.Verbs) != 2 {
		t.Errorf("registered %+v", q)
	}
	if b.Instance != q.Instance || b.Seq != 1 || b.State != wire.WorkerReady || len(b.Description) != 32 {
		t.Errorf("first beat %+v", b)
	}
}

func TestG015_NothingBeforeTheHandshake(t *testing.T) {
	r := prepareRig(t)
	r.note(func() { r.refuse = wire.Errorf(wire.CodeUnavailable, "not yet") })
	r.startWorker()
	r.until("a try to register", func() bool { return len(r.registers) > 0 })
	select {
	case <-r.w.Ready():
		t.Error("ready without an answer")
	default:
	}
	r.mu.Lock()
	beats := len(r.beats)
	r.mu.Unlock()
	if beats != 0 {
		t.Errorf("%d beats of a worker that nobody has registered", beats)
	}
	r.note(func() { r.refuse = nil })
	select {
	case <-r.w.Ready():
	case <-time.After(patience):
		t.Fatal("not ready although a coordinator answers")
	}
}

func TestF012_ConflictStopsTheWorker(t *testing.T) {
	r := prepareRig(t)
	r.note(func() { r.refuse = wire.Errorf(wire.CodeConflict, "another instance answers") })
	c := r.config()
	w, err := worker.New(c)
	r.ok(err)
	wantCode(t, w.Run(t.Context()), wire.CodeConflict)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.beats) != 0 {
		t.Errorf("the refused instance beat: %+v", r.beats)
	}
}

func TestS014_NeedsTheFlag(t *testing.T) {
	r := prepareRig(t)
	c := r.config()
	c.InsecureOrders = false
	_, err := worker.New(c)
	wantCode(t, err, wire.CodeUnauthenticated)
}

func TestProbeAndInventory(t *testing.T) {
	r := newRig(t)
	h := r.head()
	h.Lease = ""
	var p wire.ProbeReply
	r.ok(r.order(subjects.WKProbe, wire.ProbeOrder{OrderHead: h}, nil, &p))
	if p.Instance != r.w.Instance() || p.State != wire.WorkerReady {
		t.Errorf("probe says %+v", p)
	}
	var q wire.RegisterRequest
	r.ok(r.order(subjects.WKInventory, wire.ProbeOrder{OrderHead: h}, nil, &q))
	if q.Instance != r.w.Instance() || q.Route != r.w.Route() {
		t.Errorf("inventory says %+v", q)
	}
	wantCode(t, r.order("dance", wire.ProbeOrder{OrderHead: h}, nil, &p), wire.CodeUnsupportedVersion)
	wantCode(t, r.order(subjects.WKBind, map[string]int{"zzz": 1}, nil, &p), wire.CodeInvalidArgument)
}

func TestBind(t *testing.T) {
	r := newRig(t, func(c *worker.Config) { c.Slots = 2 })
	l := r.bind()
	want := wire.Metadata{"sandboxProviderPlugin": "shell", "pluginId": "shell", "provider": "process"}
	if fmt.Sprint(l.Metadata) != fmt.Sprint(want) || l.Driver != "process" || l.ProviderLeaseID == "" || len(l.Capabilities) != 2 {
		t.Errorf("bound as %+v", l.BindReply)
	}
	again, err := r.bindAs(l.head)
	r.ok(err)
	if again.ProviderLeaseID != l.ProviderLeaseID {
		t.Error("a repeated bind made another sandbox")
	}
	r.bind()
	_, err = r.bindAs(r.head())
	wantCode(t, err, wire.CodeQuotaExceeded)
	r.ok(r.release(l, wire.LeaseReleased))
	r.ok(r.release(l, wire.LeaseReleased)) // idempotent
	_, err = r.bindAs(l.head)
	wantCode(t, err, wire.CodeStaleEpoch)
	r.bind()
	// A release of a lease that is not known makes a late bind of it stale.
	ghost := lease{head: r.head()}
	r.ok(r.release(ghost, wire.LeaseReleased))
	_, err = r.bindAs(ghost.head)
	wantCode(t, err, wire.CodeStaleEpoch)
}

func TestInlineWritesNoPlugin(t *testing.T) {
	r := prepareRig(t)
	d, err := sandbox.NewInline(t.Context(), sandbox.Config{Root: t.TempDir()})
	r.ok(err)
	defer d.Close()
	r.startWorker(func(c *worker.Config) { c.Driver = d })
	<-r.w.Ready()
	l := r.bind()
	if _, has := l.Metadata[wire.MetadataSandboxProviderPlugin]; has || l.Driver != "inline" {
		t.Errorf("bound as %+v", l.BindReply)
	}
	l.ProviderLeaseID = ""
	e := sh("echo hi")
	e.Mode = wire.ModeExecute
	if res := r.run(l, e).collect(); string(res.stdout) != "hi\n" {
		t.Errorf("stdout %q", res.stdout)
	}
	r.ok(r.stop())
}

func TestI1_OlderEpochIsFenced(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, sh("echo $$; exec sleep 60"))
	pid := m.pid()
	r.run(l, sh("echo kept >file")).collect()
	newer := l
	newer.head.Epoch.N = 2
	b, err := r.bindAs(newer.head)
	r.ok(err)
	newer.BindReply = b
	wantGone(t, pid)
	wantOutcome(t, m.collect().exit.Outcome, "lease_lost")
	wantCode(t, r.draft(l, sh("true")).open(), wire.CodeStaleEpoch)
	wantCode(t, r.release(l, wire.LeaseReleased), wire.CodeStaleEpoch)
	_, err = r.bindAs(l.head)
	wantCode(t, err, wire.CodeStaleEpoch)
	if res := r.run(newer, sh("cat file")).collect(); string(res.stdout) != "kept\n" {
		t.Errorf("the lease's sandbox says %q", res.stdout)
	}
}

func TestReleaseKillsTheTree(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, wire.Exec{Argv: []string{"sh", "-c", "trap '' TERM; echo $$; setsid sleep 60 & echo $!; while :; do wait; done"}, GraceMS: 200})
	pids := []int{m.pid(), m.pid()}
	busy := func(expire bool) bool {
		var reply wire.ReleaseReply
		r.ok(r.order(subjects.WKRelease, wire.ReleaseOrder{OrderHead: l.head, Outcome: wire.LeaseExpired, Expire: expire}, nil, &reply))
		return reply.Busy
	}
	if !busy(true) {
		t.Error("a lease with a running command expired")
	}
	if busy(false) {
		t.Error("a release says busy")
	}
	for _, pid := range pids {
		wantGone(t, pid)
	}
	wantOutcome(t, m.collect().exit.Outcome, "lease_expired")
	wantCode(t, r.draft(l, sh("true")).open(), wire.CodeStaleEpoch)
	if s := r.w.Stats(); s.Leases != 0 || s.Running != 0 {
		t.Errorf("left over: %+v", s)
	}
}

func TestG018_CloseKillsALateCommand(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	closing := func(m *remote, o wire.OutcomeKind) {
		var p wire.ProbeReply
		r.ok(r.order(subjects.WKClose, wire.CloseOrder{OrderHead: l.head, Channel: m.id, Outcome: o}, nil, &p))
	}
	m := r.run(l, sh("trap '' TERM; echo $$; while :; do sleep 0.05; done"))
	pid := m.pid()
	began := time.Now()
	closing(m, wire.Unknown)
	m.collect()
	wantGone(t, pid)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the command was dead after %s", took)
	} else {
		t.Logf("the command was dead after %s", took)
	}
	never := r.draft(l, sh("true"))
	closing(never, wire.Unknown)
	wantCode(t, never.open(), wire.CodeChannelEnded)
}

// soon makes a client lost within a fraction of a second.
var soon = worker.Limits{Keepalive: 100 * time.Millisecond, Flush: 100 * time.Millisecond}

func TestE013_ClientLost(t *testing.T) {
	r := newRig(t, withLimits(soon))
	l := r.bind()
	e := sh("echo $$; exec sleep 60")
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 200}
	m := r.run(l, e)
	pid := m.pid()
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.Keep}
	kept := r.run(l, e)
	keptPID := kept.pid()
	wantOutcome(t, m.record().Outcome, "client_lost")
	wantGone(t, pid)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", keptPID)); err != nil {
		t.Errorf("the command that is kept is gone: %v", err)
	}
	r.ok(kept.request(wire.Request{Verb: wire.VerbStop}))
	wantOutcome(t, kept.collect().exit.Outcome, "ended_by_request")
}

func TestKeepaliveHoldsAClient(t *testing.T) {
	r := newRig(t, withLimits(soon))
	l := r.bind()
	e := sh("sleep 1.5; echo alive")
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 1}
	m := r.run(l, e)
	subject := subjects.KeepaliveUp(tenant, r.w.Route(), uuid.NewString())
	stranger := uuid.New()
	foreign := subjects.KeepaliveUp("other", r.w.Route(), uuid.NewString())
	for ended := false; !ended; {
		probe := m.end.AppendProbe(nil)
		if len(probe) == 0 {
			break
		}
		other := probe
		other = append([]byte{other[0]}, append(stranger[:], other[17:]...)...)
		answer, err := r.conn.Request(t.Context(), subject, append(probe, other...))
		r.ok(err)
		state, rest, err := wire.SplitKeepalive(answer)
		r.ok(err)
		if k := wire.ControlKind(state[0]); k != wire.ControlState && k != wire.ControlGone {
			t.Fatalf("the channel is answered with kind %d", k)
		}
		m.end.ControlMessage(state)
		for len(rest) > 0 && wire.ControlKind(rest[0]) == wire.ControlStdinClosed {
			_, rest, err = wire.SplitKeepalive(rest)
			r.ok(err)
		}
		if len(rest) != wire.GoneSize || wire.ControlKind(rest[0]) != wire.ControlGone {
			t.Fatalf("an unknown channel is answered with %v", rest)
		}
		// Another tenant's channel is as unknown as one that is not.
		answer, err = r.conn.Request(t.Context(), foreign, probe)
		r.ok(err)
		if len(answer) != wire.GoneSize {
			t.Fatalf("another tenant is answered with %d bytes", len(answer))
		}
		select {
		case <-m.end.Done():
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	if res := m.collect(); string(res.stdout) != "alive\n" {
		t.Errorf("%q, %s", res.stdout, res.exit.Outcome)
	}
}

func TestEndedIsReportedUntilAnswered(t *testing.T) {
	r := newRig(t)
	r.note(func() { r.unwell = true })
	m := r.run(r.bind(), sh("exit 9"))
	m.collect()
	r.until("a first report", func() bool { return len(r.ended[m.id]) > 0 })
	r.note(func() { r.unwell = false })
	r.until("a second report", func() bool { return len(r.ended[m.id]) > 1 })
}

func TestF035_CleanStopFlushes(t *testing.T) {
	t.Parallel()
	r := newRig(t, withLimits(worker.Limits{}))
	l := r.bind()
	m := r.run(l, sh("trap 'exit 0' TERM; echo $$; head -c 10000 /dev/zero; while :; do sleep 0.05; done"))
	pid := m.pid()
	r.until("the last bytes", func() bool { return m.end.Received().Stdout >= 10_000 })
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }() // ends with the worker
	res := m.collect()
	if len(res.stdout) != 10_000 {
		t.Errorf("%d bytes of 10,000", len(res.stdout))
	}
	wantOutcome(t, res.exit.Outcome, "worker_drained")
	r.ok(<-stopped)
	wantGone(t, pid)
	wantOutcome(t, m.record().Outcome, "worker_drained")
	r.until("the goodbye", func() bool {
		last := len(r.beats) - 1
		return last >= 0 && r.beats[last].State == wire.WorkerGoodbye
	})
	if s := r.w.Stats(); s.Leases != 0 || s.Channels != 0 || s.Spilled != 0 || !s.Draining {
		t.Errorf("left over: %+v", s)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	r := prepareRig(t)
	c := r.config()
	root := t.TempDir()
	d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: root})
	r.ok(err)
	defer d.Close()
	c.Driver = d
	c.Limits.Flush = 50 * time.Millisecond
	w, err := worker.New(c)
	r.ok(err)
	r.w, r.stop = w, run(t, w)
	<-w.Ready()
	l := r.bind()
	e := sh("trap '' TERM; echo $$; setsid yes")
	e.GraceMS = 200
	m := r.run(l, e)
	pid := m.pid()
	began := time.Now()
	r.ok(r.stop())
	t.Logf("stopped in %s", time.Since(began))
	wantGone(t, pid)
	if _, err := os.Stat(filepath.Join(root, l.ProviderLeaseID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sandbox is still there: %v", err)
	}
	wantCode(t, w.Run(t.Context()), wire.CodeInternal)
}

func TestServerRestartIsAPause(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), piped("cat"))
	m.write("before\n")
	if got := m.line(); got != "before" {
		t.Fatal(got)
	}
	r.mu.Lock()
	registered := len(r.registers)
	r.mu.Unlock()
	r.srv.Restart(t, true)
	r.until("a new registration", func() bool { return len(r.registers) > registered })
	m.write("after\n")
	if got := m.line(); got != "after" {
		t.Errorf("cat says %q", got)
	}
	m.end.CloseStream(wire.Stdin)
	wantOutcome(t, m.collect().exit.Outcome, "exited(0)")
}
