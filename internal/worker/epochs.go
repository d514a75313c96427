package worker

import "github.com/weft-fabric/weft/internal/wire"

// maxIncarnations bounds the former incarnations that are remembered.
const maxIncarnations = 64

// epochs remembers the newest epoch of every lease that was bound or released
// here, and refuses what is older. It is pure.
//
// Two epochs of one incarnation compare by number. An incarnation that was not
// heard of before is newer than all: an operator began to count anew.
type epochs struct {
	keep   int // ended leases remembered
	former []string
	now    string // incarnation
	leases map[string]mark
	ended  []string // leases, oldest first
}

type mark struct {
	epoch wire.Epoch
	ended bool // nothing of this epoch is obeyed any more
}

func newEpochs(keep int) *epochs { return &epochs{keep: keep, leases: map[string]mark{}} }

// check returns STALE_EPOCH if an order about lease at e is too old to obey.
func (t *epochs) check(lease string, e wire.Epoch) error {
	m, known := t.leases[lease]
	switch {
	case t.isFormer(e.Incarnation), known && older(e, m.epoch):
		return wire.Errorf(wire.CodeStaleEpoch, "the lease was granted anew since this order was given; read the lease again")
	case known && m.ended && m.epoch == e:
		return wire.Errorf(wire.CodeStaleEpoch, "the lease has ended on this worker; acquire a new one")
	}
	return nil
}

// older reports whether a was granted before b, as far as numbers tell.
func older(a, b wire.Epoch) bool { return a.Incarnation == b.Incarnation && a.N < b.N }

func (t *epochs) isFormer(incarnation string) bool {
	for _, f := range t.former {
		if f == incarnation {
			return true
		}
	}
	return false
}

// bound notes that lease is held at e, which check has passed.
func (t *epochs) bound(lease string, e wire.Epoch) { t.set(lease, mark{epoch: e}) }

// end notes that lease is over at e, which check has passed, and that a late
// bind at e must not revive it.
func (t *epochs) end(lease string, e wire.Epoch) {
	if m := t.leases[lease]; m.ended && m.epoch == e {
		return
	}
	t.set(lease, mark{epoch: e, ended: true})
	t.ended = append(t.ended, lease)
	for len(t.ended) > t.keep {
		if t.leases[t.ended[0]].ended {
			delete(t.leases, t.ended[0])
		}
		t.ended = t.ended[1:]
	}
}

func (t *epochs) set(lease string, m mark) {
	if m.epoch.Incarnation != t.now {
		if t.now != "" {
			t.former = append(t.former, t.now)
			t.former = t.former[max(0, len(t.former)-maxIncarnations):]
		}
		t.now = m.epoch.Incarnation
	}
	t.leases[lease] = m
}
