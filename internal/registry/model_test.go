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

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := registry.New(registry.Config{BeatPeriod: mPeriod, Missed: 3})
		m := &model{now: t0, workers: map[string]*modelWorker{}, busUps: []time.Time{{}}}
		names := []string{"w0", "w1", "w2", "w3", "w4", "w5"}
		made := 0
		pick := func(t *rapid.T) (string, *modelWorker) {
			name := rapid.SampledFrom(names).Draw(t, "worker")
			return name, m.workers[name]
		}
		beat := func(t *rapid.T, name string, w *modelWorker, b wire.Beat) {
			got := tab.Beat(m.now, name, b)
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
				w.contacts = append(w.contacts, m.now)
				if b.State == wire.WorkerGoodbye {
					w.goodbye, want = true, registry.BeatGoodbye
				}
			}
			if got != want {
				t.Fatalf("beat %+v of %s: %d, want %d", b, name, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"advance": func(t *rapid.T) {
				m.now = m.now.Add(rapid.SampledFrom([]time.Duration{1, time.Second, 2 * time.Second, 3 * time.Second, mWindow, mWindow + 1}).Draw(t, "by"))
			},
			"all beat": func(t *rapid.T) {
				for _, name := range names {
					if w := m.workers[name]; w != nil && !w.goodbye {
						beat(t, name, w, wire.Beat{Instance: w.holder(), Seq: w.maxSeq + 1, State: wire.WorkerReady})
					}
				}
			},
			"beat": func(t *rapid.T) {
				name, w := pick(t)
				b := wire.Beat{Instance: "stranger", Seq: 1, State: rapid.SampledFrom([]wire.WorkerState{"ready", "ready", "draining", "goodbye"}).Draw(t, "state")}
				if w != nil {
					b.Instance = rapid.SampledFrom(append([]string{w.holder(), w.holder()}, w.instances...)).Draw(t, "instance")
					b.Seq = uint64(max(1, int(w.maxSeq)+rapid.IntRange(-1, 2).Draw(t, "step")))
				}
				beat(t, name, w, b)
			},
			"register": func(t *rapid.T) {
				name, w := pick(t)
				made++
				req := desc(name, fmt.Sprintf("i%d", made))
				reg, err := tab.Register(m.now, req, "")
				if err != nil {
					t.Fatal(err)
				}
				if w != nil && !w.goodbye && m.state(w) != "dead" {
					if reg.Probe == nil || reg.Probe.Instance != w.holder() {
						t.Fatalf("%s is %s: %+v, want a probe of %s", name, m.state(w), reg, w.holder())
					}
					if rapid.Bool().Draw(t, "first answers") {
						tab.Heard(m.now, *reg.Probe)
						w.contacts = append(w.contacts, m.now)
						return
					}
					if reg, err = tab.Takeover(m.now, req, "", *reg.Probe); err != nil {
						t.Fatal(err)
					}
				}
				if reg.Probe != nil {
					t.Fatalf("%s: %+v, want registered", name, reg)
				}
				if w == nil {
					w = &modelWorker{}
					m.workers[name] = w
				}
				if n := len(w.instances); n >= 8 { // the table remembers eight
					w.instances = w.instances[n-8:]
				}
				*w = modelWorker{instances: append(w.instances, req.Instance), contacts: []time.Time{m.now}}
			},
			"bus down": func(*rapid.T) { tab.BusDown(); m.up = false },
			"bus up":   func(*rapid.T) { tab.BusUp(m.now); m.up = true; m.busUps = append(m.busUps, m.now) },
			"probe": func(t *rapid.T) {
				for _, p := range tab.DueProbes(m.now) {
					w := m.workers[p.Worker]
					if m.state(w) != "suspect" || m.braked() || p.Instance != w.holder() {
						t.Fatalf("probe of %v, which is %s", p, m.state(w))
					}
					answered := rapid.Bool().Draw(t, "answered")
					braked := m.braked()
					tab.Probed(m.now, p, answered)
					if answered {
						w.contacts = append(w.contacts, m.now)
					} else if !braked {
						w.failures = append(w.failures, m.now)
					}
				}
			},
			"": func(t *rapid.T) { // after every action
				if got := tab.BusSuspected(m.now); got != m.braked() {
					t.Fatalf("suspected %t, want %t", got, m.braked())
				}
				list := tab.List(m.now)
				if len(list) != len(m.workers) {
					t.Fatalf("%d workers, want %d", len(list), len(m.workers))
				}
				p := tab.Place(m.now, registry.Query{}, first)
				placed := map[string]bool{}
				for _, c := range p.Candidates {
					placed[c.Worker] = true
				}
				for _, v := range list {
					w := m.workers[v.Worker]
					if want := m.state(w); v.State != want || v.Instance != w.holder() {
						t.Fatalf("%s/%s is %s, want %s/%s", v.Worker, v.Instance, v.State, w.holder(), want)
					}
					may := !w.drain && v.State != "dead" && v.State != "gone"
					if placed[v.Worker] != may || (p.Refused[v.Worker] == "") != may {
						t.Fatalf("%s is %s: placed %t, refused %q", v.Worker, v.State, placed[v.Worker], p.Refused[v.Worker])
					}
				}
				for _, l := range tab.LostSince(m.now, time.Minute) {
					w := m.workers[l.Worker]
					if l.Instance == w.holder() && (m.state(w) != "dead" && m.state(w) != "gone" || m.listening() < time.Minute || l.Silence < time.Minute) {
						t.Fatalf("lost %+v, which is %s", l, m.state(w))
					}
				}
			},
		})
	})
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
