package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Query says what a lease needs. Empty fields match any.
type Query struct {
	Plugin     string
	Provider   string
	Labels     map[string]string // each must be equal on the worker
	Capability wire.Capability   // declared by the provider, and its verb verified
}

// Candidate is a worker that may take the lease, and the provider it would use.
type Candidate struct {
	Target
	Route    string
	Provider string
	Driver   string
	Free     int // slots
}

// Refusal is the kind of reason why a worker is no candidate.
type Refusal string

// The kinds, the most telling first.
const (
	RefusedSlots      Refusal = "no free slots"
	RefusedCordoned   Refusal = "cordoned"
	RefusedDraining   Refusal = "draining"
	RefusedDead       Refusal = "not running"
	RefusedCapability Refusal = "capability missing"
	RefusedLabels     Refusal = "labels differ"
	RefusedProvider   Refusal = "provider missing"
	RefusedPlugin     Refusal = "other plugin"
	RefusedUnknown    Refusal = "not registered"
)

// Placement answers Place: the candidates in the order to try, and why each
// other worker is none (for operators).
type Placement struct {
	Candidates []Candidate
	Refused    map[string]Refusal
}

// Refuse notes that a candidate refused, for Err.
func (p *Placement) Refuse(worker string, why Refusal) { p.Refused[worker] = why }

// Err is NO_WORKER with a summary by kind. It names and counts no worker, so
// that a tenant may see it.
func (p Placement) Err() *wire.Error {
	if len(p.Refused) == 0 {
		return wire.Errorf(wire.CodeNoWorker, "no worker is registered; start one, or try again when one is up")
	}
	have := map[Refusal]bool{}
	for _, why := range p.Refused {
		have[why] = true
	}
	var kinds []string
	for _, k := range [...]Refusal{
		RefusedSlots, RefusedCordoned, RefusedDraining, RefusedDead, RefusedCapability,
		RefusedLabels, RefusedProvider, RefusedPlugin, RefusedUnknown,
	} {
		if have[k] {
			kinds = append(kinds, string(k))
			delete(have, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(have)) {
		kinds = append(kinds, string(k))
	}
	why := strings.Join(kinds, ", ")
	return wire.Errorf(wire.CodeNoWorker, "no worker can take the lease (%s); try again later, or ask for less", why).With("refused", why)
}

// Place finds who may take a lease. Of the candidates that are left it takes two
// at random and the freer of them next, so that coordinators which see the same
// beats do not all choose the same worker. Workers whose liveness is in doubt
// come last. intN returns a random number in [0, n), such as rand.IntN.
func (t *Table) Place(now time.Time, q Query, intN func(int) int) Placement {
	p := Placement{Refused: map[string]Refusal{}}
	var live, doubtful []Candidate
	for _, name := range slices.Sorted(maps.Keys(t.workers)) {
		e := t.workers[name]
		c, why := t.candidate(now, name, e, q)
		switch {
		case why != "":
			p.Refused[name] = why
		case t.state(now, e) == StateLive:
			live = append(live, c)
		default:
			doubtful = append(doubtful, c)
		}
	}
	p.Candidates = append(shuffle(live, intN), shuffle(doubtful, intN)...)
	return p
}

func (t *Table) candidate(now time.Time, name string, e *entry, q Query) (Candidate, Refusal) {
	d := e.desc
	if d == nil {
		return Candidate{}, RefusedUnknown
	}
	if q.Plugin != "" && q.Plugin != d.PluginID {
		return Candidate{}, RefusedPlugin
	}
	provider, why := e.provider(q)
	if why != "" {
		return Candidate{}, why
	}
	for k, v := range q.Labels {
		if have, ok := d.Labels[k]; !ok || have != v {
			return Candidate{}, RefusedLabels
		}
	}
	if s := t.state(now, e); s == StateDead || s == StateGone {
		return Candidate{}, RefusedDead
	}
	free := d.Slots - e.slots.used()
	switch {
	case e.beat.state == wire.WorkerDraining:
		return Candidate{}, RefusedDraining
	case e.cordoned:
		return Candidate{}, RefusedCordoned
	case free <= 0:
		return Candidate{}, RefusedSlots
	}
	return Candidate{
		Target: Target{Worker: name, Instance: e.instance}, Route: d.Route,
		Provider: provider.Name, Driver: provider.Driver, Free: free,
	}, ""
}

// provider is the first one that serves q.
func (e *entry) provider(q Query) (wire.Provider, Refusal) {
	why := RefusedProvider
	for _, p := range e.desc.Providers {
		if q.Provider != "" && q.Provider != p.Name {
			continue
		}
		if q.Capability == "" || slices.Contains(p.Capabilities, q.Capability) && e.verified(q.Capability) {
			return p, ""
		}
		why = RefusedCapability
	}
	return wire.Provider{}, why
}

// shuffle orders cs by repeated choice of the freer of two; it uses cs up.
func shuffle(cs []Candidate, intN func(int) int) []Candidate {
	out := make([]Candidate, 0, len(cs))
	for len(cs) > 0 {
		i, j := intN(len(cs)), intN(len(cs))
		if cs[j].Free > cs[i].Free {
			i = j
		}
		out = append(out, cs[i])
		cs[i] = cs[len(cs)-1]
		cs = cs[:len(cs)-1]
	}
	return out
}

// Reserve takes a slot of at for a lease, once however often it is called for
// it. It reports false if that instance is not the current one, or has none left.
func (t *Table) Reserve(at Target, lease string) bool {
	e, ok := t.workers[at.Worker]
	if !ok || e.instance != at.Instance || e.desc == nil || e.gone {
		return false
	}
	return e.slots.reserve(lease, e.desc.Slots)
}

// Adopt notes a lease that at holds already, as the store or its inventory
// says, whatever its slots.
func (t *Table) Adopt(at Target, lease string) {
	if e, ok := t.workers[at.Worker]; ok && e.instance == at.Instance {
		e.slots.adopt(lease)
	}
}

// Unreserve gives a lease's slot back, when its bind failed or its sandbox is torn down.
func (t *Table) Unreserve(worker, lease string) {
	if e, ok := t.workers[worker]; ok {
		e.slots.free(lease)
	}
}

// slots counts what is in use on one instance; see the package doc.
type slots struct {
	reported int             // by the newest beat
	reserved map[string]bool // lease → reserved since that beat
	since    int             // reserved since that beat
	freed    int             // freed since that beat, of what it may have counted
}

func (s *slots) used() int {
	return max(s.reported-s.freed+s.since, len(s.reserved))
}

func (s *slots) report(used int) {
	s.reported, s.freed = used, 0
	if s.since == 0 {
		return
	}
	s.since = 0
	for l := range s.reserved {
		s.reserved[l] = false
	}
}

func (s *slots) reserve(lease string, of int) bool {
	if _, ok := s.reserved[lease]; ok {
		return true
	}
	if s.used() >= of {
		return false
	}
	s.put(lease, true)
	s.since++
	return true
}

func (s *slots) adopt(lease string) {
	if _, ok := s.reserved[lease]; !ok {
		s.put(lease, false)
	}
}

func (s *slots) put(lease string, fresh bool) {
	if s.reserved == nil {
		s.reserved = map[string]bool{}
	}
	s.reserved[lease] = fresh
}

func (s *slots) free(lease string) {
	fresh, ok := s.reserved[lease]
	switch {
	case !ok:
		return
	case fresh:
		s.since--
	default:
		s.freed++
	}
	delete(s.reserved, lease)
}

// quote shows a name in ASCII, so that no refusal prints what a terminal obeys.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return fmt.Sprintf("%+q", s)
}

func invalid(format string, args ...any) error {
	return wire.Errorf(wire.CodeInvalidArgument, format, args...)
}
