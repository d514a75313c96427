package registry_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/wire"
)

// model says what a Table should answer, from the whole history: it forgets
// nothing and computes everything anew.
type model struct {
	now     time.Time
	busUps  []time.Time
	up      bool
	workers map[string]*modelWorker
}

type modelWorker struct {
	instances []string // all that ever held it, the holder last
	contacts  []time.Time
	failures  []time.Time // probes of the holder that were not answered
	maxSeq    uint64
	goodbye   bool
	drain     bool
}

func (w *modelWorker) holder() string { return w.instances[len(w.instances)-1] }

const (
	mPeriod = 2 * time.Second
	mWindow = 6 * time.Second
)

func last(ts []time.Time) time.Time {
	if len(ts) == 0 {
		return time.Time{}
	}
	return slices.MaxFunc(ts, time.Time.Compare)
}

func (m *model) listening() time.Duration { return m.now.Sub(last(m.busUps)) }

func (m *model) state(w *modelWorker) string {
	silence := m.now.Sub(last(w.contacts))
	failed := slices.ContainsFunc(w.failures, func(f time.Time) bool {
		return f.After(last(w.contacts)) && !f.Before(last(m.busUps))
	})
	switch {
	case w.goodbye:
		return "gone"
	case silence <= mWindow && w.drain:
		return "draining"
	case silence <= mWindow:
		return "live"
	case !m.up || !failed && min(silence, m.listening()) <= mWindow:
		return "unknown"
	case failed:
		return "dead"
	}
	return "suspect"
}

func (m *model) braked() bool {
	all, silent := 0, 0
	for _, w := range m.workers {
		if s := m.state(w); s == "gone" || s == "dead" {
			continue
		}
		all++
		if min(m.now.Sub(last(w.contacts)), m.listening()) > mPeriod*3/2 {
			silent++
		}
	}
	return m.up && silent >= 3 && silent > all-silent
}

// pair drives a Table and its model alike.
type pair struct {
	*model
	tab  *registry.Table
	made int // instances
}

var modelNames = [...]string{"w0", "w1", "w2", "w3", "w4", "w5"}

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pair{
			model: &model{now: t0, workers: map[string]*modelWorker{}, busUps: []time.Time{{}}},
			tab:   registry.New(registry.Config{BeatPeriod: mPeriod, Missed: 3}),
		}
		t.Repeat(map[string]func(*rapid.T){
			"advance": func(t *rapid.T) {
				steps := []time.Duration{1, time.Second, 2 * time.Second, 3 * time.Second, mWindow, mWindow + 1}
				p.now = p.now.Add(rapid.SampledFrom(steps).Draw(t, "by"))
			},
			"all beat": func(t *rapid.T) {
				for _, name := range modelNames {
					if w := p.workers[name]; w != nil && !w.goodbye {
						p.beat(t, name, wire.Beat{Instance: w.holder(), Seq: w.maxSeq + 1, State: wire.WorkerReady})
					}
				}
			},
			"one beats": p.oneBeats,
			"register":  p.register,
			"bus down":  func(*rapid.T) { p.tab.BusDown(); p.up = false },
			"bus up":    func(*rapid.T) { p.tab.BusUp(p.now); p.up = true; p.busUps = append(p.busUps, p.now) },
			"probe":     p.probe,
			"":          p.compare, // after every action
		})
	})
}

func (p *pair) beat(t *rapid.T, name string, b wire.Beat) {
	w := p.workers[name]
	got := p.tab.Beat(p.now, name, b)
	want := registry.BeatTaken
	switch {
	case w == nil || !slices.Contains(w.instances, b.Instance):
		want = registry.BeatNeedDescription
	case w.holder() != b.Instance || w.goodbye:
		want = registry.BeatOldInstance
	case b.Seq <= w.maxSeq:
		want = registry.BeatOldSeq
	default:
		w.maxSeq, w.drain = b.Seq, b.State == wire.WorkerDraining
		w.contacts = append(w.contacts, p.now)
		if b.State == wire.WorkerGoodbye {
			w.goodbye, want = true, registry.BeatGoodbye
		}
	}
	if got != want {
		t.Fatalf("beat %+v of %s: %d, want %d", b, name, got, want)
	}
}

func (p *pair) oneBeats(t *rapid.T) {
	name := rapid.SampledFrom(modelNames[:]).Draw(t, "worker")
	state := rapid.SampledFrom([]wire.WorkerState{"ready", "ready", "draining", "goodbye"}).Draw(t, "state")
	b := wire.Beat{Instance: "stranger", Seq: 1, State: state}
	if w := p.workers[name]; w != nil {
		b.Instance = rapid.SampledFrom(append([]string{w.holder(), w.holder()}, w.instances...)).Draw(t, "instance")
		b.Seq = uint64(max(1, int(w.maxSeq)+rapid.IntRange(-1, 2).Draw(t, "step")))
	}
	p.beat(t, name, b)
}

func (p *pair) register(t *rapid.T) {
	name := rapid.SampledFrom(modelNames[:]).Draw(t, "worker")
	w := p.workers[name]
	p.made++
	req := desc(name, fmt.Sprintf("i%d", p.made))
	reg, err := p.tab.Register(p.now, req, "")
	if err != nil {
		t.Fatal(err)
	}
	if w != nil && !w.goodbye && p.state(w) != "dead" {
		if reg.Probe == nil || reg.Probe.Instance != w.holder() {
			t.Fatalf("%s is %s: %+v, want a probe of %s", name, p.state(w), reg, w.holder())
		}
		if rapid.Bool().Draw(t, "first answers") {
			p.tab.Heard(p.now, *reg.Probe)
			w.contacts = append(w.contacts, p.now)
			return
		}
		if reg, err = p.tab.Takeover(p.now, req, "", *reg.Probe); err != nil {
			t.Fatal(err)
		}
	}
	if reg.Probe != nil {
		t.Fatalf("%s: %+v, want registered", name, reg)
	}
	var past []string
	if w != nil {
		past = w.instances[max(0, len(w.instances)-8):] // the table remembers eight
	}
	p.workers[name] = &modelWorker{instances: append(past, req.Instance), contacts: []time.Time{p.now}}
}

func (p *pair) probe(t *rapid.T) {
	for _, at := range p.tab.DueProbes(p.now) {
		w := p.workers[at.Worker]
		braked := p.braked()
		if p.state(w) != "suspect" || braked || at.Instance != w.holder() {
			t.Fatalf("probe of %v, which is %s", at, p.state(w))
		}
		answered := rapid.Bool().Draw(t, "answered")
		p.tab.Probed(p.now, at, answered)
		if answered {
			w.contacts = append(w.contacts, p.now)
		} else {
			w.failures = append(w.failures, p.now)
		}
	}
}

func (p *pair) compare(t *rapid.T) {
	if got := p.tab.BusSuspected(p.now); got != p.braked() {
		t.Fatalf("suspected %t, want %t", got, p.braked())
	}
	list := p.tab.List(p.now)
	if len(list) != len(p.workers) {
		t.Fatalf("%d workers, want %d", len(list), len(p.workers))
	}
	placement := p.tab.Place(p.now, registry.Query{}, first)
	placed := map[string]bool{}
	for _, c := range placement.Candidates {
		placed[c.Worker] = true
	}
	for _, v := range list {
		w := p.workers[v.Worker]
		if want := p.state(w); v.State != want || v.Instance != w.holder() {
			t.Fatalf("%s/%s is %s, want %s/%s", v.Worker, v.Instance, v.State, w.holder(), want)
		}
		may := !w.drain && v.State != "dead" && v.State != "gone"
		if placed[v.Worker] != may || (placement.Refused[v.Worker] == "") != may {
			t.Fatalf("%s is %s: placed %t, refused %q", v.Worker, v.State, placed[v.Worker], placement.Refused[v.Worker])
		}
	}
	for _, l := range p.tab.LostSince(p.now, time.Minute) {
		w := p.workers[l.Worker]
		over := p.state(w) == "dead" || p.state(w) == "gone"
		if l.Instance == w.holder() && (!over || p.listening() < time.Minute || l.Silence < time.Minute) {
			t.Fatalf("lost %+v, which is %s", l, p.state(w))
		}
	}
}

// TestSlotsNeverOverfill: whatever beats say and however late they come, one
// coordinator's own grants never pass the slots.
func TestSlotsNeverOverfill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := registry.New(registry.Config{})
		req := desc("w", "i")
		req.Slots = rapid.IntRange(1, 5).Draw(t, "slots")
		if _, err := tab.Register(t0, req, ""); err != nil {
			t.Fatal(err)
		}
		w := registry.Target{Worker: "w", Instance: "i"}
		held := map[string]bool{}
		seq, reported := uint64(0), 0
		lease := func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "lease")) }
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				l := lease(t)
				ok := tab.Reserve(w, l)
				if held[l] && !ok {
					t.Fatal("a lease that has its slot was refused it")
				}
				held[l] = held[l] || ok
			},
			"free": func(t *rapid.T) { l := lease(t); tab.Unreserve("w", l); held[l] = false },
			"beat": func(t *rapid.T) {
				seq++
				reported = rapid.IntRange(0, req.Slots).Draw(t, "used")
				tab.Beat(t0, "w", wire.Beat{Instance: "i", Seq: seq, State: "ready", SlotsUsed: reported})
			},
			"": func(t *rapid.T) {
				n := 0
				for _, h := range held {
					if h {
						n++
					}
				}
				v, _ := tab.View(t0, "w")
				if n > req.Slots || v.SlotsUsed < n || v.SlotsUsed < 0 {
					t.Fatalf("%d held, %d shown used, of %d slots", n, v.SlotsUsed, req.Slots)
				}
			},
		})
	})
}
