package registry

import (
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// BeatResult is what a beat did.
type BeatResult uint8

// The results of Beat.
const (
	BeatTaken           BeatResult = iota + 1 // the newest of a known instance
	BeatNeedDescription                       // ask the instance for its description, then Register it
	BeatOldInstance                           // dropped: its instance was replaced, refused, or said goodbye
	BeatOldSeq                                // dropped: not newer than the last one taken
	BeatGoodbye                               // taken: the instance is gone
	BeatInvalid                               // dropped: not a valid beat
)

// Beat takes a heartbeat that came in on worker's subject. A beat whose
// description is not the registered one is taken and asks for the new one.
func (t *Table) Beat(now time.Time, worker string, b wire.Beat) BeatResult {
	if !validBeat(worker, b) {
		t.counts.Invalid++
		return BeatInvalid
	}
	e, ok := t.workers[worker]
	switch {
	case !ok:
		return BeatNeedDescription
	case e.instance != b.Instance && !e.hasRetired(b.Instance):
		return BeatNeedDescription
	case e.instance != b.Instance || e.gone || e.refused != "":
		t.counts.OldInstance++
		return BeatOldInstance
	case b.Seq <= e.beat.seq:
		t.counts.OldSeq++
		return BeatOldSeq
	}
	e.contact(now)
	e.beat = beat{seq: b.Seq, state: b.State, reason: b.Reason}
	e.slots.report(b.SlotsUsed)
	switch {
	case b.State == wire.WorkerGoodbye:
		e.gone = true
		return BeatGoodbye
	case e.desc == nil || b.Description != "" && b.Description != e.hash:
		return BeatNeedDescription
	}
	return BeatTaken
}

func validBeat(worker string, b wire.Beat) bool {
	if wire.CheckToken("worker", worker) != nil || wire.CheckToken("instance", b.Instance) != nil {
		return false
	}
	if b.Reason != "" && wire.CheckName("reason", b.Reason, wire.MaxBeat) != nil {
		return false
	}
	known := b.State == wire.WorkerReady || b.State == wire.WorkerDraining || b.State == wire.WorkerGoodbye
	return known && b.Seq > 0 && b.SlotsUsed >= 0
}

// Heard notes any other contact of an instance (a renewal, an answer). It
// reports whether that instance is the current one of its worker.
func (t *Table) Heard(now time.Time, at Target) bool {
	e, ok := t.workers[at.Worker]
	if !ok || e.instance != at.Instance || e.gone || e.refused != "" {
		return false
	}
	e.contact(now)
	return true
}

func (e *entry) contact(now time.Time) {
	if now.After(e.watch.contact) {
		e.watch.contact = now
	}
	e.watch.heard, e.watch.silent = true, false
	e.watch.probed, e.watch.failed = time.Time{}, time.Time{}
}

// Expect makes an instance known that a stored lease names, so that its silence
// can be judged although this table never heard it. contact is when somebody
// last did. It changes nothing for an instance that is known.
func (t *Table) Expect(at Target, contact time.Time) {
	e, ok := t.workers[at.Worker]
	switch {
	case !ok && len(t.workers) < t.cfg.MaxWorkers:
		t.workers[at.Worker] = &entry{instance: at.Instance, watch: watch{contact: contact}}
	case ok && e.instance != at.Instance && !e.hasRetired(at.Instance):
		e.retire(retired{instance: at.Instance, contact: contact})
	}
}

// BusUp tells that the judge's own connection came up or came back: silence
// counts anew from here, and who was dead is to be probed again.
func (t *Table) BusUp(now time.Time) { t.bus.up, t.bus.since = true, now }

// BusDown tells that the judge's own connection is gone.
func (t *Table) BusDown() { t.bus.up = false }

// state is live, suspect, dead, gone or unknown.
func (t *Table) state(now time.Time, e *entry) string {
	switch {
	case e.refused != "":
		return StateUnknown
	case e.gone:
		return StateGone
	case now.Sub(e.watch.contact) <= t.Window():
		return StateLive
	case !t.bus.up:
		return StateUnknown
	case !e.watch.failed.IsZero() && !e.watch.failed.Before(t.bus.since):
		return StateDead
	case t.quiet(now, e) > t.Window():
		return StateSuspect
	}
	return StateUnknown
}

// quiet is how long the judge could have heard e and did not.
func (t *Table) quiet(now time.Time, e *entry) time.Duration {
	if e.watch.contact.After(t.bus.since) {
		return now.Sub(e.watch.contact)
	}
	return now.Sub(t.bus.since)
}

// brakeMin is how many must be silent together before the bus is suspected:
// the loss of one or two workers is an ordinary day, also where there are no others.
const brakeMin = 3

// BusSuspected reports the brake: so many are silent together that none is
// declared dead. Workers that this table has only been told of count only if
// it has heard nobody at all.
func (t *Table) BusSuspected(now time.Time) bool {
	if !t.bus.up {
		return false
	}
	limit := t.cfg.BeatPeriod * 3 / 2
	var all, silent [2]int // [1]: heard
	for _, e := range t.workers {
		if s := t.state(now, e); s == StateGone || s == StateDead || e.refused != "" {
			continue
		}
		heard := 0
		if e.watch.heard {
			heard = 1
		}
		all[heard]++
		if t.quiet(now, e) > limit {
			silent[heard]++
		}
	}
	of := 1
	if all[1] == 0 {
		of = 0
	}
	return silent[of] >= brakeMin && 2*silent[of] > all[of]
}

// DueProbes names the suspects to probe now, by name: each until Probed answers
// for it, and again after a window. It names none while the bus is suspected.
func (t *Table) DueProbes(now time.Time) []Target {
	if t.BusSuspected(now) {
		return nil
	}
	var due []Target
	for name, e := range t.workers {
		waiting := !e.watch.probed.IsZero() && now.Sub(e.watch.probed) <= t.Window()
		if waiting || t.state(now, e) != StateSuspect {
			continue
		}
		e.watch.probed = now
		due = append(due, Target{Worker: name, Instance: e.instance})
	}
	slices.SortFunc(due, func(a, b Target) int { return strings.Compare(a.Worker, b.Worker) })
	return due
}

// Probed tells how a probe of DueProbes went. An unanswered one counts only
// against an instance that is still suspect, and not while the bus is suspected.
func (t *Table) Probed(now time.Time, at Target, answered bool) {
	if answered {
		t.Heard(now, at)
		return
	}
	e, ok := t.workers[at.Worker]
	if !ok || e.instance != at.Instance {
		return
	}
	if t.state(now, e) == StateSuspect && !t.BusSuspected(now) {
		e.watch.failed = now
	}
	e.watch.probed = time.Time{}
}

// Lost is an instance whose leases may be written lost.
type Lost struct {
	Target
	Silence time.Duration // since its last contact
	Reason  string
}

// LostSince names the instances that are dead, gone or replaced and silent for
// after, and those replaced on the same boot at once. It names them at every
// call. Only silence in which the own connection was up counts.
func (t *Table) LostSince(now time.Time, after time.Duration) []Lost {
	var out []Lost
	long := t.bus.up && now.Sub(t.bus.since) >= after
	for name, e := range t.workers {
		for _, r := range e.retired {
			silence := now.Sub(r.contact)
			if r.sameBoot || long && silence >= after {
				out = append(out, Lost{Target{name, r.instance}, silence, "a newer instance of the worker has replaced it"})
			}
		}
		if !long || now.Sub(e.watch.contact) < after {
			continue
		}
		switch t.state(now, e) {
		case StateDead:
			out = append(out, Lost{Target{name, e.instance}, now.Sub(e.watch.contact), "the worker is silent and does not answer"})
		case StateGone:
			out = append(out, Lost{Target{name, e.instance}, now.Sub(e.watch.contact), "the worker has stopped"})
		}
	}
	slices.SortFunc(out, func(a, b Lost) int {
		return strings.Compare(a.Worker+"."+a.Instance, b.Worker+"."+b.Instance)
	})
	return out
}
