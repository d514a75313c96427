package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Config has the settings of a Table. Zero fields take the default.
type Config struct {
	BeatPeriod time.Duration // between two beats of a worker; 2 s
	Missed     int           // beats that a live worker may miss; 3
	MaxWorkers int           // entries kept, the dead and gone included; 10,000
	MinVersion int           // oldest protocol version accepted; 1
	MaxVersion int           // newest protocol version accepted; 1
}

// Target is one instance of a worker.
type Target struct {
	Worker   string
	Instance string
}

// Counts are what was dropped, since New.
type Counts struct{ OldInstance, OldSeq, Invalid uint64 }

// States of a worker as wire.Worker carries them. A worker that drains is shown
// as such while it would be live.
const (
	StateLive     = "live"
	StateSuspect  = "suspect"
	StateDead     = "dead"
	StateGone     = "gone" // said goodbye, or lost its route to another worker
	StateDraining = "draining"
	StateUnknown  = "unknown" // refused, or silent while this judge cannot judge
)

// Table is the registry of one coordinator. It is not safe for concurrent use.
type Table struct {
	cfg     Config
	workers map[string]*entry
	routes  map[string]string // route → worker
	bus     struct {
		up    bool
		since time.Time
	}
	counts Counts
}

// entry is one worker id. Exactly one instance holds it.
type entry struct {
	instance string
	desc     *wire.RegisterRequest // nil: expected, or refused; without inventory
	hash     string                // of the register body, as the beats name it
	refused  string                // why the registration was; desc is nil then
	gone     bool
	cordoned bool
	beat     beat
	watch    watch
	slots    slots
	retired  []retired // replaced instances, newest last
}

// beat is what the newest beat said.
type beat struct {
	seq    uint64
	state  wire.WorkerState
	reason string
}

// watch is what liveness is computed from.
type watch struct {
	contact    time.Time // last contact; as told by Expect until the first
	heard      bool      // by this table, not only expected
	probed     time.Time // when DueProbes last named it, zero once answered for
	failed     time.Time // when a probe was last unanswered, zero after a contact
	challenged time.Time // when Register last asked to probe it
	silent     bool      // that probe was not answered, and nothing was heard since
}

// retired is an instance that lost its worker id.
type retired struct {
	instance string
	contact  time.Time
	sameBoot bool
}

// maxRetired bounds the memory of replaced instances per worker.
const maxRetired = 8

// New makes an empty Table, whose bus is down until BusUp.
func New(c Config) *Table {
	c.BeatPeriod = cmp.Or(c.BeatPeriod, 2*time.Second)
	c.Missed = cmp.Or(c.Missed, 3)
	c.MaxWorkers = cmp.Or(c.MaxWorkers, 10_000)
	c.MinVersion = cmp.Or(c.MinVersion, 1)
	c.MaxVersion = cmp.Or(c.MaxVersion, 1)
	return &Table{cfg: c, workers: map[string]*entry{}, routes: map[string]string{}}
}

// Window is the silence after which a live worker is suspect.
func (t *Table) Window() time.Duration {
	return t.cfg.BeatPeriod * time.Duration(t.cfg.Missed)
}

// Len is how many workers the table knows.
func (t *Table) Len() int { return len(t.workers) }

// Counts are the beats that were dropped.
func (t *Table) Counts() Counts { return t.counts }

// View is one worker with its state and its silence, computed for now.
func (t *Table) View(now time.Time, worker string) (wire.Worker, bool) {
	e, ok := t.workers[worker]
	if !ok {
		return wire.Worker{}, false
	}
	return t.view(now, worker, e), true
}

// ByRoute is View of the worker that holds route.
func (t *Table) ByRoute(now time.Time, route string) (wire.Worker, bool) {
	worker, ok := t.routes[route]
	if !ok {
		return wire.Worker{}, false
	}
	return t.View(now, worker)
}

// List is View of all, by name.
func (t *Table) List(now time.Time) []wire.Worker {
	out := make([]wire.Worker, 0, len(t.workers))
	for _, name := range slices.Sorted(maps.Keys(t.workers)) {
		out = append(out, t.view(now, name, t.workers[name]))
	}
	return out
}

func (t *Table) view(now time.Time, name string, e *entry) wire.Worker {
	v := wire.Worker{
		Worker: name, Instance: e.instance, State: t.state(now, e), SlotsUsed: e.slots.used(),
		Cordoned: e.cordoned, Reason: cmp.Or(e.refused, e.beat.reason),
	}
	if !e.watch.contact.IsZero() {
		v.AgeMS = now.Sub(e.watch.contact).Milliseconds()
	}
	if v.State == StateLive && e.beat.state == wire.WorkerDraining {
		v.State = StateDraining
	}
	if d := e.desc; d != nil {
		v.Route, v.PluginID, v.Providers, v.Labels, v.Slots = d.Route, d.PluginID, d.Providers, d.Labels, d.Slots
	}
	return v
}

// Describe is what the worker's current instance registered, without its
// inventory. It is not to be written to.
func (t *Table) Describe(worker string) (wire.RegisterRequest, bool) {
	e, ok := t.workers[worker]
	if !ok || e.desc == nil {
		return wire.RegisterRequest{}, false
	}
	return *e.desc, true
}

// Has reports whether provider of worker declares c, and whether the worker's
// current instance has verified the verb of c. What is not known is false.
func (t *Table) Has(worker, provider string, c wire.Capability) (declared, verified bool) {
	e, ok := t.workers[worker]
	if !ok || e.desc == nil {
		return false, false
	}
	for _, p := range e.desc.Providers {
		declared = declared || p.Name == provider && slices.Contains(p.Capabilities, c)
	}
	return declared, e.verified(c)
}

func (e *entry) verified(c wire.Capability) bool { return slices.Contains(e.desc.Verbs, VerbOf(c)) }

// VerbOf is the verb that a worker lists when it has verified that it can serve
// c: open for duplexCommandStream, execute for execute, else c itself.
func VerbOf(c wire.Capability) string {
	switch c {
	case wire.CapDuplexCommandStream:
		return subjects.APIOpen
	case wire.CapExecute:
		return subjects.APIExecute
	}
	return string(c)
}

// Cordon keeps new leases off worker, or lets them on again. It reports whether
// the worker is known. A cordon outlives the worker's instance.
func (t *Table) Cordon(worker string, on bool) bool {
	e, ok := t.workers[worker]
	if ok {
		e.cordoned = on
	}
	return ok
}
