package worker

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/sandbox/sandboxtest"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestEnding(t *testing.T) {
	type step func(*ending)
	ask := func(k wire.OutcomeKind) step { return func(e *ending) { e.ask(wire.Outcome{Kind: k}) } }
	gone := func(o wire.Outcome) step { return func(e *ending) { e.gone(o) } }
	held := func(e *ending) { e.held = true }
	term := wire.SignaledBy("TERM", false)
	for name, c := range map[string]struct {
		steps []step
		want  string
		code  int // -1: none
		drain string
	}{
		"nothing yet":                             {nil, "unknown", -1, ""},
		"E-001 exit alone":                        {[]step{gone(wire.ExitedWith(42))}, "exited(42)", 42, ""},
		"E-002 signal alone":                      {[]step{gone(term)}, "signaled(TERM, core=false)", -1, ""},
		"E-004 stopped by TERM":                   {[]step{ask(wire.EndedByRequest), gone(term)}, "ended_by_request", -1, ""},
		"E-005 exit before the request":           {[]step{gone(wire.ExitedWith(0)), ask(wire.EndedByRequest)}, "exited(0)", 0, ""},
		"E-016 its own code after TERM":           {[]step{ask(wire.EndedByRequest), gone(wire.ExitedWith(4))}, "ended_by_request", 4, ""},
		"first cause of two":                      {[]step{ask(wire.TimedOut), ask(wire.LeaseReleased), gone(term)}, "timed_out", -1, ""},
		"E-018 held":                              {[]step{gone(wire.ExitedWith(0)), held}, "exited(0)", 0, wire.DrainHeld},
		"held, asked while draining":              {[]step{gone(wire.ExitedWith(0)), ask(wire.ClientLost), held}, "exited(0)", 0, wire.DrainHeld},
		"asked, not gone":                         {[]step{ask(wire.ClientLost)}, "client_lost", -1, ""},
		"a second exit is none":                   {[]step{gone(wire.ExitedWith(1)), gone(term)}, "exited(1)", 1, ""},
		"held before anything else is no outcome": {[]step{held}, "unknown", -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var e ending
			for _, s := range c.steps {
				s(&e)
			}
			o := e.outcome()
			code := -1
			if o.Code != nil {
				code = *o.Code
			}
			if o.String() != c.want || code != c.code || o.Drain != c.drain {
				t.Errorf("%s with code %d, drain %q; want %s, %d, %q", o, code, o.Drain, c.want, c.code, c.drain)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	const s = time.Second
	keep := &wire.OnDisconnect{Policy: wire.Keep}
	keep2 := &wire.OnDisconnect{Policy: wire.Keep, AfterMS: 2000}
	after2 := &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 2000}
	for name, c := range map[string]struct {
		silent, up time.Duration // before now
		policy     *wire.OnDisconnect
		want       presence
		said       time.Duration // before now, 0: it did not
	}{
		"three keepalives exactly":             {15 * s, time.Hour, nil, attached, 0},
		"missed the third":                     {15*s + 1, time.Hour, nil, detached, 0},
		"the default grace exactly":            {45 * s, time.Hour, nil, detached, 0},
		"past the default grace":               {45*s + 1, time.Hour, nil, lost, 0},
		"E-013 past its own grace":             {17*s + 1, time.Hour, after2, lost, 0},
		"E-013 keep":                           {time.Hour, 2 * time.Hour, keep, detached, 0},
		"keep for 2 s":                         {17 * s, time.Hour, keep2, detached, 0},
		"keep for 2 s, past":                   {17*s + 1, time.Hour, keep2, lost, 0},
		"the worker could not hear meanwhile":  {time.Hour, 15 * s, after2, attached, 0},
		"silent since the worker came back":    {time.Hour, 17*s + 1, after2, lost, 0},
		"said that it detaches":                {1, time.Hour, nil, detached, 1},
		"said so, its own grace":               {0, time.Hour, after2, detached, 2 * s},
		"said so, past its own grace":          {0, time.Hour, after2, lost, 2*s + 1},
		"said so while the worker was cut off": {0, 2 * s, after2, detached, 3 * s},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			said := time.Time{}
			if c.said > 0 {
				said = now.Add(-c.said)
			}
			since := awaySince(now.Add(-c.silent), said, now.Add(-c.up), 5*s)
			if got := judge(now, since, c.policy); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

func TestEpochs(t *testing.T) {
	at := func(inc string, n uint64) wire.Epoch { return wire.Epoch{Incarnation: inc, N: n} }
	stale := func(e *epochs, lease string, at wire.Epoch) bool {
		return wire.CodeOf(e.check(lease, at)) == wire.CodeStaleEpoch
	}
	e := newEpochs(2)
	if stale(e, "a", at("i", 1)) {
		t.Error("an unknown lease is stale")
	}
	e.bound("a", at("i", 2))
	if !stale(e, "a", at("i", 1)) || stale(e, "a", at("i", 2)) || stale(e, "a", at("i", 3)) {
		t.Error("only what is older than 2 is stale")
	}
	e.end("a", at("i", 2))
	if !stale(e, "a", at("i", 2)) || stale(e, "a", at("i", 3)) {
		t.Error("an ended epoch is not obeyed any more, the next one is")
	}
	e.bound("b", at("j", 1))
	if !stale(e, "b", at("i", 9)) || stale(e, "a", at("j", 1)) {
		t.Error("a former incarnation is stale, the new one counts anew")
	}
	e.end("b", at("j", 1))
	e.end("c", at("j", 1))
	e.end("d", at("j", 1))
	if len(e.leases) != 2 || len(e.ended) != 2 {
		t.Errorf("%d leases and %d ends are remembered, want 2", len(e.leases), len(e.ended))
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := newMemory(2)
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	for _, id := range ids {
		m.put(id, endedChannel{outcome: wire.ExitedWith(0)})
		m.put(id, endedChannel{outcome: wire.ExitedWith(1)})
	}
	if _, ok := m.get(ids[0]); ok || len(m.by) != 2 || len(m.order) != 2 {
		t.Errorf("remembers %d of 2, the oldest still: %t", len(m.by), ok)
	}
	if e, _ := m.get(ids[2]); *e.outcome.Code != 1 {
		t.Error("the newest word does not count")
	}
}

func TestS014_UnsignedIsRefusedWithoutTheFlag(t *testing.T) {
	if err := checkSignature(false, wire.Order{Order: []byte("{}")}); wire.CodeOf(err) != wire.CodeUnauthenticated {
		t.Errorf("error %v, want %s", err, wire.CodeUnauthenticated)
	}
	if err := checkSignature(true, wire.Order{}); err != nil {
		t.Errorf("with insecure orders: %v", err)
	}
}

func TestRoute(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	routes := make([]string, 8)
	var all sync.WaitGroup
	for i := range routes {
		all.Go(func() {
			route, err := loadRoute(dir)
			if err != nil {
				t.Error(err)
			}
			routes[i] = route
		})
	}
	all.Wait()
	for _, route := range routes {
		if route != routes[0] || len(route) != routeLen || wire.CheckToken("route", route) != nil {
			t.Errorf("route %q, first %q", route, routes[0])
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files, want the route file alone (%v)", len(entries), err)
	}
	file := filepath.Join(dir, routeFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
	for _, bad := range []string{"", "short", routes[0] + "x", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if route, err := loadRoute(dir); err == nil {
			t.Errorf("a damaged file gives the route %q", route)
		}
	}
}

func TestCountdownOfTheLimit(t *testing.T) {
	o := limit{on: true, over: func() {}}
	o.left.Store(100)
	for i, c := range []struct{ n, want int }{{60, 60}, {60, 40}, {60, 0}, {1, 0}} {
		if got := o.allow(c.n); got != c.want {
			t.Errorf("step %d: %d of %d pass, want %d", i, got, c.n, c.want)
		}
	}
}

func TestE017_AnswersAfterTheEnd(t *testing.T) {
	d, err := sandbox.NewProcess(t.Context(), sandbox.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p := sandboxtest.Start(t, sandboxtest.Box(t, d, "l"), sandboxtest.Sh("exit 6"))
	<-p.Done()
	c := &channel{fate: newFate(), exec: &wire.Exec{}}
	c.fate.started(p)
	for _, q := range []wire.Request{
		{Verb: wire.VerbSignal, Signal: "TERM"}, {Verb: wire.VerbStop}, {Verb: wire.VerbInterrupt},
	} {
		if a := c.request(q); a.Error != nil || a.Outcome == nil || a.Outcome.String() != "exited(6)" {
			t.Errorf("%s is answered with %v, %v", q.Verb, a.Error, a.Outcome)
		}
	}
	select {
	case <-c.fate.asked:
		t.Error("a request after the end asks for one")
	default:
	}
}
