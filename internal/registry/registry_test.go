package registry_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/wire"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return t0.Add(d) }

const sec = time.Second

// newTable is a table whose bus came up an hour before t0.
func newTable(c registry.Config) *registry.Table {
	tab := registry.New(c)
	tab.BusUp(at(-time.Hour))
	return tab
}

func desc(worker, instance string) wire.RegisterRequest {
	return wire.RegisterRequest{
		ProtocolVersion: 1, Worker: worker, Instance: instance, HostBootID: "boot-" + worker, Route: "route-" + worker, PluginID: "acme",
		Providers: []wire.Provider{{Name: "local", Driver: "process", Duplex: true, Capabilities: []wire.Capability{wire.CapExecute, wire.CapDuplexCommandStream}}},
		Verbs:     []string{"open", "execute"}, Slots: 5,
	}
}

func mustRegister(t *testing.T, tab *registry.Table, now time.Time, req wire.RegisterRequest) {
	t.Helper()
	reg, err := tab.Register(now, req, "")
	if err != nil || reg.Probe != nil {
		t.Fatalf("Register(%s/%s) = %+v, %v; want registered", req.Worker, req.Instance, reg, err)
	}
}

func beatOf(instance string, seq uint64) wire.Beat {
	return wire.Beat{Instance: instance, Seq: seq, State: wire.WorkerReady}
}

func wantState(t *testing.T, tab *registry.Table, now time.Time, worker, want string) wire.Worker {
	t.Helper()
	v, ok := tab.View(now, worker)
	if !ok || v.State != want {
		t.Fatalf("%s is %q (known %t) at %s; want %q", worker, v.State, ok, now.Sub(t0), want)
	}
	return v
}

func wantCode(t *testing.T, err error, code wire.Code) *wire.Error {
	t.Helper()
	if wire.CodeOf(err) != code {
		t.Fatalf("error is %v; want %s", err, code)
	}
	return wire.AsError(err)
}

func first(int) int { return 0 }

func TestF002_OnlyNewerBeatsMoveLastSeen(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	for i, c := range []struct {
		seq  uint64
		want registry.BeatResult
	}{{10, registry.BeatTaken}, {9, registry.BeatOldSeq}, {10, registry.BeatOldSeq}} {
		if got := tab.Beat(at(time.Duration(i+1)*sec), "w", beatOf("i", c.seq)); got != c.want {
			t.Errorf("beat %d: result %d, want %d", c.seq, got, c.want)
		}
	}
	if v := wantState(t, tab, at(3*sec), "w", "live"); v.AgeMS != 2000 {
		t.Errorf("age is %d ms, want 2000: only the first beat counts", v.AgeMS)
	}
	if c := tab.Counts(); c.OldSeq != 2 {
		t.Errorf("counts %+v, want 2 old", c)
	}
}

func TestF003_ThreeMissedBeatsToTheMillisecond(t *testing.T) {
	tab := newTable(registry.Config{BeatPeriod: 2 * sec, Missed: 3})
	mustRegister(t, tab, at(0), desc("w", "i"))
	tab.Beat(at(0), "w", beatOf("i", 1))
	wantState(t, tab, at(6*sec), "w", "live")
	if due := tab.DueProbes(at(6 * sec)); due != nil {
		t.Fatalf("a live worker is probed: %v", due)
	}
	late := at(6*sec + time.Millisecond)
	wantState(t, tab, late, "w", "suspect")
	target := registry.Target{Worker: "w", Instance: "i"}
	if due := tab.DueProbes(late); len(due) != 1 || due[0] != target {
		t.Fatalf("due probes %v, want %v", due, target)
	}
	if due := tab.DueProbes(late.Add(sec)); due != nil {
		t.Fatalf("probed twice: %v", due)
	}
	tab.Probed(late.Add(sec), target, true)
	wantState(t, tab, late.Add(sec), "w", "live")

	again := late.Add(sec + 6*sec + time.Millisecond)
	if due := tab.DueProbes(again); len(due) != 1 {
		t.Fatalf("due probes %v, want one", due)
	}
	tab.Probed(again, target, false)
	wantState(t, tab, again, "w", "dead")
	tab.Beat(again.Add(sec), "w", beatOf("i", 2))
	wantState(t, tab, again.Add(sec), "w", "live")
}

func TestF003_AProbeIsRepeatedWhenNobodyAnsweredForIt(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	if len(tab.DueProbes(at(7*sec))) != 1 || len(tab.DueProbes(at(13*sec))) != 0 || len(tab.DueProbes(at(13*sec+1))) != 1 {
		t.Fatal("want a probe at 7 s, none within the window, one after it")
	}
}

func TestF005_FullWorkerIsLive(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	b := beatOf("i", 1)
	b.SlotsUsed = 5
	tab.Beat(at(0), "w", b)
	if v := wantState(t, tab, at(sec), "w", "live"); v.Slots != 5 || v.SlotsUsed != 5 {
		t.Fatalf("slots %d used %d, want 5 of 5", v.Slots, v.SlotsUsed)
	}
	if p := tab.Place(at(sec), registry.Query{}, first); p.Refused["w"] != registry.RefusedSlots {
		t.Fatalf("placement %+v, want refused for slots", p)
	}
}

func TestF006_NobodyIsJudgedBeforeAFullWindowOfOwnConnection(t *testing.T) {
	tab := newTable(registry.Config{})
	for i := range 50 {
		mustRegister(t, tab, at(0), desc(fmt.Sprintf("w%d", i), "i"))
	}
	tab.BusDown()
	for d := 7 * sec; d <= 30*sec; d += sec {
		wantState(t, tab, at(d), "w0", "unknown")
		if due := tab.DueProbes(at(d)); due != nil {
			t.Fatalf("probes while the own connection is down: %v", due)
		}
	}
	tab.BusUp(at(30 * sec))
	wantState(t, tab, at(36*sec), "w0", "unknown")
	if lost := tab.LostSince(at(36*sec), 5*sec); lost != nil {
		t.Fatalf("lost %v before a full window", lost)
	}
	for i := range 49 {
		tab.Beat(at(35*sec), fmt.Sprintf("w%d", i), beatOf("i", 1))
	}
	if due := tab.DueProbes(at(36*sec + 1)); len(due) != 1 || due[0].Worker != "w49" {
		t.Fatalf("due %v, want only w49, the one that did not come back", due)
	}
}

func TestF006_DeadBeforeTheOutageIsProbedAgainAfterIt(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	w := registry.Target{Worker: "w", Instance: "i"}
	tab.DueProbes(at(7 * sec))
	tab.Probed(at(7*sec), w, false)
	wantState(t, tab, at(8*sec), "w", "dead")
	tab.BusDown()
	wantState(t, tab, at(9*sec), "w", "unknown")
	tab.BusUp(at(10 * sec))
	wantState(t, tab, at(11*sec), "w", "unknown")
	tab.Probed(at(12*sec), w, false) // a probe that was on its way: no verdict yet
	wantState(t, tab, at(12*sec), "w", "unknown")
	wantState(t, tab, at(17*sec), "w", "suspect")
}

func TestF007_RecordsOfAnEarlierCoordinator(t *testing.T) {
	tab := registry.New(registry.Config{})
	for i := range 10 {
		tab.Expect(registry.Target{Worker: fmt.Sprintf("w%d", i), Instance: "i"}, at(-10*time.Minute))
	}
	tab.BusUp(at(0))
	for _, v := range tab.List(at(sec)) {
		if v.State != "unknown" {
			t.Errorf("%s is %s after 1 s, want unknown", v.Worker, v.State)
		}
	}
	if due := tab.DueProbes(at(sec)); due != nil {
		t.Fatalf("due after 1 s: %v", due)
	}
	for i := range 9 {
		w := fmt.Sprintf("w%d", i)
		if got := tab.Beat(at(2*sec), w, beatOf("i", 7)); got != registry.BeatNeedDescription {
			t.Fatalf("beat of an expected worker: %d, want that it is asked", got)
		}
		mustRegister(t, tab, at(2*sec), desc(w, "i"))
	}
	for i := range 9 {
		tab.Beat(at(5*sec), fmt.Sprintf("w%d", i), beatOf("i", 8))
	}
	due := tab.DueProbes(at(6*sec + 1))
	if len(due) != 1 || due[0].Worker != "w9" {
		t.Fatalf("due %v, want w9", due)
	}
	tab.Probed(at(6*sec+1), due[0], false)
	wantState(t, tab, at(6*sec+2), "w9", "dead")
	wantState(t, tab, at(6*sec+2), "w0", "live")
	if lost := tab.LostSince(at(59*sec), 60*sec); lost != nil {
		t.Fatalf("lost %v; this judge has listened for 59 s only", lost)
	}
	lost := tab.LostSince(at(60*sec), 60*sec)
	if len(lost) != 1 || lost[0].Worker != "w9" {
		t.Fatalf("lost %v, want w9", lost)
	}
}

func TestF008_StateIsComputedWhenAsked(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	tab.Beat(at(0), "w", beatOf("i", 1)) // says ready, and is never heard again
	for _, target := range tab.DueProbes(at(7 * sec)) {
		tab.Probed(at(7*sec), target, false)
	}
	if v := wantState(t, tab, at(10*sec), "w", "dead"); v.AgeMS != 10_000 {
		t.Fatalf("age %d ms, want 10000", v.AgeMS)
	}
	if p := tab.Place(at(10*sec), registry.Query{}, first); len(p.Candidates) != 0 || p.Refused["w"] != registry.RefusedDead {
		t.Fatalf("placement %+v, want none", p)
	}
}

func TestF009_GoodbyeIsAtOnceAndFinal(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	bye := wire.Beat{Instance: "i", Seq: 2, State: wire.WorkerGoodbye, Reason: "stopped"}
	if got := tab.Beat(at(sec), "w", bye); got != registry.BeatGoodbye {
		t.Fatalf("goodbye: %d", got)
	}
	if v := wantState(t, tab, at(sec), "w", "gone"); v.Reason != "stopped" {
		t.Errorf("reason %q", v.Reason)
	}
	if got := tab.Beat(at(2*sec), "w", beatOf("i", 3)); got != registry.BeatOldInstance {
		t.Errorf("beat after goodbye: %d, want dropped", got)
	}
	if tab.Heard(at(2*sec), registry.Target{Worker: "w", Instance: "i"}) {
		t.Error("heard after goodbye")
	}
	if _, err := tab.Register(at(2*sec), desc("w", "i"), ""); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("same instance registers after its goodbye: %v, want CONFLICT", err)
	}
	mustRegister(t, tab, at(2*sec), desc("w", "i2")) // no probe
	wantState(t, tab, at(2*sec), "w", "live")
}

func TestF011_UnsupportedVersionIsRefusedAndListed(t *testing.T) {
	tab := newTable(registry.Config{MinVersion: 1, MaxVersion: 2})
	mustRegister(t, tab, at(0), desc("good", "i"))
	bad := desc("new", "i")
	bad.ProtocolVersion = 99
	_, err := tab.Register(at(0), bad, "")
	e := wantCode(t, err, wire.CodeUnsupportedVersion)
	if !strings.Contains(e.Message, "99") || !strings.Contains(e.Message, "1 to 2") {
		t.Errorf("text %q names no version and range", e.Message)
	}
	if v := wantState(t, tab, at(0), "new", "unknown"); !strings.Contains(v.Reason, "UNSUPPORTED_VERSION") {
		t.Errorf("listed with reason %q", v.Reason)
	}
	if got := tab.Beat(at(sec), "new", beatOf("i", 1)); got != registry.BeatOldInstance {
		t.Errorf("beat of a refused instance: %d, want dropped", got)
	}
	bad.Worker = "good"
	_, err = tab.Register(at(sec), bad, "")
	wantCode(t, err, wire.CodeUnsupportedVersion)
	wantState(t, tab, at(sec), "good", "live")
	mustRegister(t, tab, at(sec), desc("new", "i2")) // upgraded
}

func TestF012_SecondInstanceIsRefusedWhileTheFirstAnswers(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "a"))
	a, b := registry.Target{Worker: "w", Instance: "a"}, desc("w", "b")
	for d := 5 * sec; d <= 30*sec; d += 5 * sec {
		tab.Beat(at(d), "w", beatOf("a", uint64(d/sec)))
		reg, err := tab.Register(at(d), b, "")
		if err != nil || reg.Probe == nil || *reg.Probe != a {
			t.Fatalf("Register = %+v, %v; want a probe of the first", reg, err)
		}
		if v := wantState(t, tab, at(d), "w", "live"); v.Instance != "a" {
			t.Fatalf("record names %s, want a", v.Instance)
		}
		if got := tab.Beat(at(d), "w", beatOf("b", 1)); got != registry.BeatNeedDescription {
			t.Fatalf("beat of the refused: %d", got)
		}
	}
	wantCode(t, registry.Conflict(b), wire.CodeConflict)

	// It is heard between the question and the verdict: not silent.
	if _, err := tab.Register(at(31*sec), b, ""); err != nil {
		t.Fatal(err)
	}
	tab.Beat(at(32*sec), "w", beatOf("a", 100))
	_, err := tab.Takeover(at(33*sec), b, "", a)
	wantCode(t, err, wire.CodeConflict)

	// Killed: the probe is not answered.
	if _, err := tab.Register(at(34*sec), b, ""); err != nil {
		t.Fatal(err)
	}
	reg, err := tab.Takeover(at(34*sec), b, "", a)
	if err != nil || reg.Probe != nil || reg.Replaced == nil || reg.Replaced.Target != a || !reg.Replaced.SameBoot {
		t.Fatalf("Takeover = %+v, %v; want a replaced on the same boot", reg, err)
	}
	if v := wantState(t, tab, at(34*sec), "w", "live"); v.Instance != "b" {
		t.Fatalf("record names %s, want b", v.Instance)
	}
	if got := tab.Beat(at(35*sec), "w", beatOf("a", 200)); got != registry.BeatOldInstance || tab.Counts().OldInstance != 1 {
		t.Fatalf("beat of the replaced: %d, counts %+v; want dropped and counted", got, tab.Counts())
	}
	if lost := tab.LostSince(at(35*sec), time.Minute); len(lost) != 1 || lost[0].Target != a {
		t.Fatalf("lost %v, want a at once: same boot", lost)
	}
}

func TestF013_RestartOfADeadWorkerNeedsNoProbe(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "a"))
	for _, p := range tab.DueProbes(at(7 * sec)) {
		tab.Probed(at(7*sec), p, false)
	}
	other := desc("w", "b")
	other.HostBootID = "another"
	reg, err := tab.Register(at(8*sec), other, "")
	if err != nil || reg.Probe != nil || reg.Replaced == nil || reg.Replaced.SameBoot {
		t.Fatalf("Register = %+v, %v; want replaced, not on the same boot", reg, err)
	}
	if lost := tab.LostSince(at(59*sec), time.Minute); lost != nil {
		t.Fatalf("lost %v before the time, without proof", lost)
	}
	if lost := tab.LostSince(at(60*sec), time.Minute); len(lost) != 1 || lost[0].Instance != "a" {
		t.Fatalf("lost %v, want a", lost)
	}
}

func TestRouteBelongsToOneWorker(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("x", "a"))
	mustRegister(t, tab, at(0), desc("y", "a"))
	thief := desc("x", "b")
	thief.Route = "route-y"
	reg, err := tab.Register(at(sec), thief, "")
	if err != nil || reg.Probe == nil || reg.Probe.Worker != "x" {
		t.Fatalf("Register = %+v, %v; want a probe of x", reg, err)
	}
	reg, err = tab.Takeover(at(sec), thief, "", *reg.Probe)
	if err != nil || reg.Probe == nil || reg.Probe.Worker != "y" {
		t.Fatalf("Takeover = %+v, %v; want a probe of y next", reg, err)
	}
	reg, err = tab.Takeover(at(sec), thief, "", *reg.Probe)
	if err != nil || reg.Probe != nil {
		t.Fatalf("Takeover = %+v, %v; want registered", reg, err)
	}
	if v, ok := tab.ByRoute(at(sec), "route-y"); !ok || v.Worker != "x" || v.Instance != "b" {
		t.Errorf("route-y belongs to %+v, want x", v)
	}
	if _, ok := tab.ByRoute(at(sec), "route-x"); ok {
		t.Error("the old route is still known")
	}
	wantState(t, tab, at(sec), "y", "gone")
}

func TestSilenceIsForgottenWhenTheInstanceIsHeard(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("x", "a"))
	mustRegister(t, tab, at(0), desc("y", "a"))
	thief := desc("x", "b")
	thief.Route = "route-y"
	reg, _ := tab.Register(at(sec), thief, "")
	if reg, err := tab.Takeover(at(sec), thief, "", *reg.Probe); err != nil || reg.Probe == nil || reg.Probe.Worker != "y" {
		t.Fatalf("Takeover = %+v, %v; want a probe of y, which will answer", reg, err)
	}
	tab.Beat(at(2*sec), "x", beatOf("a", 1))
	if reg, err := tab.Register(at(3*sec), thief, ""); err != nil || reg.Probe == nil || reg.Probe.Worker != "x" {
		t.Fatalf("Register = %+v, %v; want x probed anew: it was heard", reg, err)
	}
}

func TestARefusedInstanceDoesNotHideTheDeadOne(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "a"))
	for _, p := range tab.DueProbes(at(7 * sec)) {
		tab.Probed(at(7*sec), p, false)
	}
	bad := desc("w", "b")
	bad.ProtocolVersion, bad.HostBootID = 99, ""
	_, err := tab.Register(at(8*sec), bad, "")
	wantCode(t, err, wire.CodeUnsupportedVersion)
	wantState(t, tab, at(8*sec), "w", "unknown")
	if _, ok := tab.ByRoute(at(8*sec), "route-w"); ok {
		t.Error("the dead instance's route is still there")
	}
	if lost := tab.LostSince(at(60*sec), time.Minute); len(lost) != 1 || lost[0].Instance != "a" {
		t.Fatalf("lost %v, want a", lost)
	}
}

func TestBeatNeedDescription(t *testing.T) {
	tab := newTable(registry.Config{})
	if got := tab.Beat(at(0), "w", beatOf("i", 1)); got != registry.BeatNeedDescription || tab.Len() != 0 {
		t.Fatalf("beat of a stranger: %d, %d entries; want asked and nothing kept", got, tab.Len())
	}
	if _, err := tab.Register(at(0), desc("w", "i"), "hash-1"); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		hash string
		want registry.BeatResult
	}{{"hash-1", registry.BeatTaken}, {"", registry.BeatTaken}, {"hash-2", registry.BeatNeedDescription}} {
		b := beatOf("i", uint64(i+1))
		b.Description = c.hash
		if got := tab.Beat(at(sec), "w", b); got != c.want {
			t.Errorf("beat with description %q: %d, want %d", c.hash, got, c.want)
		}
	}
	if v := wantState(t, tab, at(sec), "w", "live"); v.AgeMS != 0 {
		t.Errorf("a beat with another description is contact all the same; age %d", v.AgeMS)
	}
}

func TestBeatInvalidIsCounted(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	bad := []wire.Beat{
		{Instance: "i", State: wire.WorkerReady}, {Instance: "i", Seq: 1}, {Instance: "i", Seq: 1, State: "up"},
		{Instance: "I", Seq: 1, State: wire.WorkerReady}, {Instance: "i", Seq: 1, State: wire.WorkerReady, SlotsUsed: -1},
		{Instance: "i", Seq: 1, State: wire.WorkerGoodbye, Reason: "\x1b[31m"},
	}
	for _, b := range bad {
		if got := tab.Beat(at(sec), "w", b); got != registry.BeatInvalid {
			t.Errorf("%+v: %d, want invalid", b, got)
		}
	}
	if c := tab.Counts(); c.Invalid != uint64(len(bad)) {
		t.Errorf("counts %+v", c)
	}
}

// fleet registers n workers that beat every 2 s, each at its own phase, until
// silentAt(i), and runs the probe job every 100 ms; nobody answers a probe.
func fleet(t *testing.T, n int, silentAt func(i int) time.Duration, until time.Duration) *registry.Table {
	t.Helper()
	tab := newTable(registry.Config{MaxWorkers: n})
	seq := make([]uint64, n)
	for i := range n {
		mustRegister(t, tab, at(0), desc(fmt.Sprintf("w%03d", i), "i"))
	}
	const step = 100 * time.Millisecond
	for now := step; now <= until; now += step {
		for i := range n {
			phase := time.Duration(i%20) * step
			if now < silentAt(i) && (now-phase)%(2*sec) == 0 {
				seq[i]++
				tab.Beat(at(now), fmt.Sprintf("w%03d", i), beatOf("i", seq[i]))
			}
		}
		for _, p := range tab.DueProbes(at(now)) {
			tab.Probed(at(now), p, false)
		}
	}
	return tab
}

func countStates(tab *registry.Table, now time.Time) map[string]int {
	m := map[string]int{}
	for _, v := range tab.List(now) {
		m[v.State]++
	}
	return m
}

func TestBrake(t *testing.T) {
	never := func(int) time.Duration { return time.Hour }
	if m := countStates(fleet(t, 50, never, 60*sec), at(60*sec)); m["live"] != 50 {
		t.Errorf("all beat: %v, want 50 live", m)
	}
	all := fleet(t, 50, func(int) time.Duration { return 20 * sec }, 60*sec)
	if m := countStates(all, at(60*sec)); m["dead"] != 0 || !all.BusSuspected(at(60*sec)) {
		t.Errorf("all fall silent together: %v, suspected %t; want none dead", m, all.BusSuspected(at(60*sec)))
	}
	if lost := all.LostSince(at(120*sec), 60*sec); lost != nil {
		t.Errorf("%d lost under the brake", len(lost))
	}
	if p := all.Place(at(60*sec), registry.Query{}, first); len(p.Candidates) != 50 {
		t.Errorf("%d candidates under the brake, want 50: suspects come last, but come", len(p.Candidates))
	}
	few := fleet(t, 50, func(i int) time.Duration {
		if i < 20 {
			return 20 * sec
		}
		return time.Hour
	}, 60*sec)
	if m := countStates(few, at(60*sec)); m["dead"] != 20 || m["live"] != 30 {
		t.Errorf("20 of 50 fall silent: %v, want them dead", m)
	}
	one := fleet(t, 1, func(int) time.Duration { return 20 * sec }, 60*sec)
	if m := countStates(one, at(60*sec)); m["dead"] != 1 {
		t.Errorf("the only worker falls silent: %v, want it dead", m)
	}
	slowly := fleet(t, 10, func(i int) time.Duration { return time.Duration(20+10*i) * sec }, 150*sec)
	if m := countStates(slowly, at(150*sec)); m["dead"] != 10 {
		t.Errorf("ten fall silent one after the other: %v, want all dead", m)
	}
	back := fleet(t, 50, func(i int) time.Duration { return 20 * sec }, 40*sec)
	for i := range 40 {
		back.Beat(at(41*sec), fmt.Sprintf("w%03d", i), beatOf("i", 1000))
	}
	if back.BusSuspected(at(41*sec)) || len(back.DueProbes(at(41*sec))) != 10 {
		t.Error("the brake does not go when most are heard again")
	}
}

func TestBrakeNeedsMoreThanHalf(t *testing.T) {
	for silent, want := range map[int]bool{3: false, 4: true} {
		tab := fleet(t, 6, func(i int) time.Duration {
			if i < silent {
				return 20 * sec
			}
			return time.Hour
		}, 25*sec)
		if got := tab.BusSuspected(at(25 * sec)); got != want {
			t.Errorf("%d of 6 silent: suspected %t, want %t", silent, got, want)
		}
	}
}

func TestBrakeHoldsForAProbeOnItsWay(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("a", "i"))
	for _, w := range []string{"b", "c", "d"} {
		mustRegister(t, tab, at(4*sec), desc(w, "i"))
	}
	due := tab.DueProbes(at(6*sec + 1))
	if len(due) != 1 || due[0].Worker != "a" {
		t.Fatalf("due %v, want a", due)
	}
	tab.Probed(at(8*sec), due[0], false) // by now the others have missed a beat too
	wantState(t, tab, at(8*sec), "a", "suspect")
}

func TestBrakeWhenNobodyWasEverHeard(t *testing.T) {
	for n, want := range map[int]bool{2: false, 3: true} {
		tab := newTable(registry.Config{})
		for i := range n {
			tab.Expect(registry.Target{Worker: fmt.Sprintf("w%d", i), Instance: "i"}, at(-time.Hour))
		}
		if got := tab.BusSuspected(at(0)); got != want {
			t.Errorf("%d expected, none heard: suspected %t, want %t", n, got, want)
		}
	}
}

func TestS006_TableIsBounded(t *testing.T) {
	limit := 100
	if os.Getenv("WEFT_SOAK") == "1" {
		limit = 1000
	}
	tab := newTable(registry.Config{MaxWorkers: limit})
	var refused int
	for i := range 10 * limit {
		reg, err := tab.Register(at(0), desc(fmt.Sprintf("w%d", i), "i"), "")
		if err != nil || reg.Probe != nil {
			wantCode(t, err, wire.CodeQuotaExceeded)
			refused++
		}
		if i%20 != 0 {
			continue
		}
		bad := desc(fmt.Sprintf("v%d", i), "i")
		bad.ProtocolVersion = 99
		_, err = tab.Register(at(0), bad, "")
		wantCode(t, err, wire.CodeUnsupportedVersion)
		tab.Expect(registry.Target{Worker: fmt.Sprintf("e%d", i), Instance: "i"}, at(0))
	}
	if tab.Len() != limit || refused < 9*limit {
		t.Fatalf("%d entries, %d refused", tab.Len(), refused)
	}
	wantState(t, tab, at(0), "w0", "live")
}

func TestGoneMakeRoom(t *testing.T) {
	tab := newTable(registry.Config{MaxWorkers: 2})
	mustRegister(t, tab, at(0), desc("a", "i"))
	mustRegister(t, tab, at(0), desc("b", "i"))
	_, err := tab.Register(at(0), desc("c", "i"), "")
	wantCode(t, err, wire.CodeQuotaExceeded)
	tab.Beat(at(sec), "a", wire.Beat{Instance: "i", Seq: 1, State: wire.WorkerGoodbye})
	mustRegister(t, tab, at(sec), desc("c", "i"))
	if _, ok := tab.View(at(sec), "a"); ok {
		t.Error("the gone worker is still there")
	}
	if _, ok := tab.ByRoute(at(sec), "route-a"); ok {
		t.Error("its route is still there")
	}
}

func rnd(seed uint64) func(int) int { return rand.New(rand.NewPCG(seed, 1)).IntN }
