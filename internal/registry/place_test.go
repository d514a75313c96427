package registry_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestF033_OldReportsDoNotOverfill(t *testing.T) {
	for seed := range uint64(50) {
		tab := newTable(registry.Config{BeatPeriod: 10 * sec})
		for i := range 4 {
			mustRegister(t, tab, at(0), desc(fmt.Sprintf("w%d", i), "i"))
			tab.Beat(at(0), fmt.Sprintf("w%d", i), beatOf("i", 1)) // 0 used
		}
		now, intN, got := at(10*sec), rnd(seed), map[string]int{}
		grant := func(lease string) bool {
			for _, c := range tab.Place(now, registry.Query{}, intN).Candidates {
				if tab.Reserve(c.Target, lease) {
					got[c.Worker]++
					return true
				}
			}
			return false
		}
		for i := range 20 {
			if !grant(fmt.Sprintf("lease-%d", i)) {
				t.Fatalf("seed %d: lease %d has no worker", seed, i)
			}
		}
		if want := map[string]int{"w0": 5, "w1": 5, "w2": 5, "w3": 5}; !maps.Equal(got, want) {
			t.Fatalf("seed %d: %v, want five each", seed, got)
		}
		p := tab.Place(now, registry.Query{}, intN)
		e := wantCode(t, p.Err(), wire.CodeNoWorker)
		if grant("one-more") || len(p.Candidates) != 0 || !strings.Contains(e.Message, "no free slots") {
			t.Fatalf("seed %d: a 21st found a worker, or the text %q does not name slots", seed, e.Message)
		}
	}
}

func TestReserve(t *testing.T) {
	tab := newTable(registry.Config{})
	mustRegister(t, tab, at(0), desc("w", "i"))
	w := registry.Target{Worker: "w", Instance: "i"}
	beats := func(seq uint64, used int) {
		b := beatOf("i", seq)
		b.SlotsUsed = used
		tab.Beat(at(sec), "w", b)
	}
	wantUsed := func(what string, want int) {
		t.Helper()
		if v, _ := tab.View(at(sec), "w"); v.SlotsUsed != want {
			t.Errorf("%s: %d used, want %d", what, v.SlotsUsed, want)
		}
	}
	beats(1, 3)
	wantUsed("three of other coordinators", 3)
	if !tab.Reserve(w, "l1") || !tab.Reserve(w, "l1") {
		t.Error("not reserved, or not again for the same lease")
	}
	wantUsed("one more of ours since", 4)
	beats(2, 4)
	wantUsed("the beat counts it now", 4)
	if !tab.Reserve(w, "l2") || tab.Reserve(w, "l3") {
		t.Error("want the fifth slot taken and the sixth refused")
	}
	tab.Unreserve("w", "l2")
	wantUsed("given back before a beat saw it", 4)
	tab.Unreserve("w", "l1")
	tab.Unreserve("w", "l1")
	wantUsed("given back after a beat saw it, twice", 3)
	beats(3, 0)
	for i := range 7 {
		tab.Adopt(w, fmt.Sprintf("held-%d", i))
	}
	wantUsed("held on record though the beat says none", 7)
	if tab.Reserve(registry.Target{Worker: "w", Instance: "old"}, "l4") || tab.Reserve(registry.Target{Worker: "x", Instance: "i"}, "l4") {
		t.Error("reserved on an instance that is not there")
	}
	tab.Unreserve("nobody", "l4")
}

func TestRegisterInventoryCountsAsUsed(t *testing.T) {
	tab := newTable(registry.Config{})
	d := desc("w", "i")
	d.Inventory.Leases = make([]wire.InventoryLease, 5)
	mustRegister(t, tab, at(0), d)
	if p := tab.Place(at(0), registry.Query{}, first); p.Refused["w"] != registry.RefusedSlots {
		t.Errorf("placement %+v, want full", p)
	}
	if got, ok := tab.Describe("w"); !ok || got.Inventory.Leases != nil || got.PluginID != "acme" {
		t.Errorf("description %+v, %t; want it without the inventory", got, ok)
	}
}

func TestPlaceFilters(t *testing.T) {
	tab := newTable(registry.Config{})
	add := func(name string, change func(*wire.RegisterRequest)) {
		d := desc(name, "i")
		d.Labels = map[string]string{"zone": "a"}
		change(&d)
		mustRegister(t, tab, at(0), d)
		tab.Beat(at(0), name, beatOf("i", 1))
	}
	none := func(*wire.RegisterRequest) {}
	add("ok", func(d *wire.RegisterRequest) {
		d.Providers = append([]wire.Provider{{Name: "other", Driver: "bwrap"}}, d.Providers...)
	})
	add("plugin", func(d *wire.RegisterRequest) { d.PluginID = "else" })
	add("provider", func(d *wire.RegisterRequest) { d.Providers[0].Name = "remote" })
	add("label", func(d *wire.RegisterRequest) { d.Labels["zone"] = "b" })
	add("undeclared", func(d *wire.RegisterRequest) { d.Providers[0].Capabilities = nil })
	add("unverified", func(d *wire.RegisterRequest) { d.Verbs = []string{"execute"} })
	add("draining", none)
	tab.Beat(at(0), "draining", wire.Beat{Instance: "i", Seq: 2, State: wire.WorkerDraining})
	add("cordoned", none)
	if !tab.Cordon("cordoned", true) || tab.Cordon("nobody", true) {
		t.Error("Cordon does not tell whom it knows")
	}
	add("full", none)
	tab.Beat(at(0), "full", wire.Beat{Instance: "i", Seq: 2, State: wire.WorkerReady, SlotsUsed: 5})
	add("gone", none)
	tab.Beat(at(0), "gone", wire.Beat{Instance: "i", Seq: 2, State: wire.WorkerGoodbye})
	tab.Expect(registry.Target{Worker: "expected", Instance: "i"}, at(0))

	p := tab.Place(at(0), registry.Query{
		Plugin: "acme", Provider: "local", Labels: map[string]string{"zone": "a"}, Capability: wire.CapDuplexCommandStream,
	}, first)
	want := registry.Candidate{
		Target: registry.Target{Worker: "ok", Instance: "i"}, Route: "route-ok", Provider: "local", Driver: "process", Free: 5,
	}
	if len(p.Candidates) != 1 || p.Candidates[0] != want {
		t.Errorf("candidates %+v, want %+v", p.Candidates, want)
	}
	refused := map[string]registry.Refusal{
		"plugin": registry.RefusedPlugin, "provider": registry.RefusedProvider, "label": registry.RefusedLabels,
		"undeclared": registry.RefusedCapability, "unverified": registry.RefusedCapability, "draining": registry.RefusedDraining,
		"cordoned": registry.RefusedCordoned, "full": registry.RefusedSlots, "gone": registry.RefusedDead, "expected": registry.RefusedUnknown,
	}
	if !maps.Equal(p.Refused, refused) {
		t.Errorf("refused %v, want %v", p.Refused, refused)
	}
	p.Refuse("ok", "isolation missing")
	text := p.Err().Message
	for name, why := range p.Refused {
		if !strings.Contains(text, string(why)) {
			t.Errorf("the summary lacks %q", why)
		}
		if strings.Contains(text, name+"=") || strings.Contains(text, "route-") {
			t.Errorf("the summary names worker %s: %s", name, text)
		}
	}
	wantState(t, tab, at(0), "draining", "draining")
	for _, c := range []struct {
		worker             string
		cap                wire.Capability
		declared, verified bool
	}{
		{"ok", wire.CapDuplexCommandStream, true, true},
		{"undeclared", wire.CapDuplexCommandStream, false, true},
		{"unverified", wire.CapDuplexCommandStream, true, false},
		{"unverified", wire.CapExecute, true, true},
		{"ok", wire.CapConcurrentSyncOperations, false, false},
		{"expected", wire.CapExecute, false, false},
		{"nobody", wire.CapExecute, false, false},
	} {
		if d, v := tab.Has(c.worker, "local", c.cap); d != c.declared || v != c.verified {
			t.Errorf("%s has %s: %t, %t; want %t, %t", c.worker, c.cap, d, v, c.declared, c.verified)
		}
	}
}

func TestPlaceWithoutWorkersSaysSo(t *testing.T) {
	e := newTable(registry.Config{}).Place(at(0), registry.Query{}, first).Err()
	if e.Code != wire.CodeNoWorker || !strings.Contains(e.Message, "no worker is registered") || !e.Retryable {
		t.Errorf("%+v", e)
	}
}

func TestPlacePrefersTheFreerOfTwoAndTheLive(t *testing.T) {
	tab := newTable(registry.Config{})
	for i := range 10 {
		d := desc(fmt.Sprintf("w%d", i), "i")
		d.Slots = 100
		mustRegister(t, tab, at(0), d)
		used := 90
		if i == 0 {
			used = 0
		}
		tab.Beat(at(0), d.Worker, wire.Beat{Instance: "i", Seq: 1, State: wire.WorkerReady, SlotsUsed: used})
	}
	firsts := map[string]int{}
	intN := rnd(7)
	const rounds = 10_000
	for range rounds {
		p := tab.Place(at(0), registry.Query{}, intN)
		seen := map[string]bool{}
		for _, c := range p.Candidates {
			seen[c.Worker] = true
		}
		if len(seen) != 10 || len(p.Candidates) != 10 {
			t.Fatalf("candidates %v, want all ten once", p.Candidates)
		}
		firsts[p.Candidates[0].Worker]++
	}
	// Two draws of ten meet the free one with probability 1 - 0.9² = 0.19.
	if share := float64(firsts["w0"]) / rounds; share < 0.17 || share > 0.21 {
		t.Errorf("the free worker is first in %.3f of the rounds, want 0.19", share)
	}
	for i := 1; i < 10; i++ {
		tab.Beat(at(5*sec), fmt.Sprintf("w%d", i), beatOf("i", 2))
	}
	p := tab.Place(at(7*sec), registry.Query{}, intN)
	if last := p.Candidates[9].Worker; last != "w0" {
		t.Errorf("last is %s, want the suspect w0", last)
	}
}

func TestS005_Labels(t *testing.T) {
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprintf("k%d", i)] = "v"
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		names  string // "" : accepted
	}{
		{"65 labels", many, "65"},
		{"bad key", map[string]string{"Bad Key": "v"}, `"Bad Key"`},
		{"empty key", map[string]string{"": "v"}, `""`},
		{"long key", map[string]string{strings.Repeat("k", 129): "v"}, "label"},
		{"long value", map[string]string{"big": strings.Repeat("v", 257)}, `"big"`},
		{"longest value", map[string]string{"big": strings.Repeat("v", 256)}, ""},
		{"template", map[string]string{"a": "{{.X}}"}, ""},
		{"markup", map[string]string{"a": "<b>x</b>", "b": ""}, ""},
	} {
		tab := newTable(registry.Config{})
		d := desc("w", "i")
		d.Labels = c.labels
		_, err := tab.Register(at(0), d, "")
		if c.names == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if e := wantCode(t, err, wire.CodeInvalidArgument); !strings.Contains(e.Message, c.names) || tab.Len() != 0 {
			t.Errorf("%s: %q does not name %s, or it is stored", c.name, e.Message, c.names)
		}
	}
}

func TestS009_RefusalsPrintNoRawBytes(t *testing.T) {
	for _, evil := range []string{"a\x00b", "a\x1b[31m", "a\u202eb", "a\u200bb", "a\u00a0b", "a\xc3\x28"} {
		for what, change := range map[string]func(*wire.RegisterRequest){
			"label key":   func(d *wire.RegisterRequest) { d.Labels = map[string]string{evil: "v"} },
			"label value": func(d *wire.RegisterRequest) { d.Labels = map[string]string{"k": evil} },
			"plugin":      func(d *wire.RegisterRequest) { d.PluginID = evil },
			"provider":    func(d *wire.RegisterRequest) { d.Providers[0].Name = evil },
			"driver":      func(d *wire.RegisterRequest) { d.Providers[0].Driver = evil },
			"isolation":   func(d *wire.RegisterRequest) { d.Providers[0].Isolation = evil },
			"capability":  func(d *wire.RegisterRequest) { d.Providers[0].Capabilities = []wire.Capability{wire.Capability(evil)} },
			"verb":        func(d *wire.RegisterRequest) { d.Verbs = []string{evil} },
			"version":     func(d *wire.RegisterRequest) { d.Version = evil },
			"boot id":     func(d *wire.RegisterRequest) { d.HostBootID = evil },
			"worker":      func(d *wire.RegisterRequest) { d.Worker = evil },
			"instance":    func(d *wire.RegisterRequest) { d.Instance = evil },
			"route":       func(d *wire.RegisterRequest) { d.Route = evil },
		} {
			tab := newTable(registry.Config{})
			d := desc("w", "i")
			change(&d)
			_, err := tab.Register(at(0), d, "")
			if e := wantCode(t, err, wire.CodeInvalidArgument); strings.Contains(e.Error(), evil) {
				t.Errorf("%s: the refusal repeats the bytes: %q", what, e.Error())
			}
			if tab.Len() != 0 {
				t.Errorf("%s: stored", what)
			}
		}
	}
}

func TestRegisterLimits(t *testing.T) {
	for name, change := range map[string]func(*wire.RegisterRequest){
		"no slots":         func(d *wire.RegisterRequest) { d.Slots = 0 },
		"too many slots":   func(d *wire.RegisterRequest) { d.Slots = registry.MaxSlots + 1 },
		"no providers":     func(d *wire.RegisterRequest) { d.Providers = nil },
		"provider twice":   func(d *wire.RegisterRequest) { d.Providers = append(d.Providers, d.Providers[0]) },
		"no plugin":        func(d *wire.RegisterRequest) { d.PluginID = "" },
		"no route":         func(d *wire.RegisterRequest) { d.Route = "" },
		"no worker":        func(d *wire.RegisterRequest) { d.Worker = "" },
		"too many verbs":   func(d *wire.RegisterRequest) { d.Verbs = make([]string, 65) },
		"big description":  func(d *wire.RegisterRequest) { d.Labels = bigLabels() },
		"plugin ends in .": func(d *wire.RegisterRequest) { d.PluginID = "a." },
		"plugin is @":      func(d *wire.RegisterRequest) { d.PluginID = "@" },
	} {
		d := desc("w", "i")
		change(&d)
		if _, err := newTable(registry.Config{}).Register(at(0), d, ""); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	d := desc("w", "i")
	d.PluginID = "@acme/sandbox-provider.v2"
	mustRegister(t, newTable(registry.Config{}), at(0), d)
	if err := (registry.Query{Plugin: "a b"}).Check(); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("query: %v", err)
	}
}

func bigLabels() map[string]string {
	m := map[string]string{}
	for i := range 64 {
		m[fmt.Sprintf("%d%s", i, strings.Repeat("k", 100))] = strings.Repeat("<", 256) // six bytes each as JSON
	}
	return m
}

// BenchmarkBeat is one beat in a table of 10,000.
func BenchmarkBeat(b *testing.B) {
	tab := newTable(registry.Config{})
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("w%d", i)
		if _, err := tab.Register(at(0), desc(names[i], "i"), ""); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	seq := uint64(0)
	for b.Loop() {
		seq++
		tab.Beat(at(time.Duration(seq)), names[seq%uint64(len(names))], beatOf("i", seq))
	}
}

// BenchmarkJobs is the periodic work on 10,000 workers.
func BenchmarkJobs(b *testing.B) {
	tab := newTable(registry.Config{})
	for i := range 10_000 {
		if _, err := tab.Register(at(0), desc(fmt.Sprintf("w%d", i), "i"), ""); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		tab.DueProbes(at(sec))
		tab.LostSince(at(sec), time.Minute)
	}
}
