package worker

import (
	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/wire"
)

// endedChannel is what is remembered of a channel that is forgotten otherwise.
type endedChannel struct {
	tenant, lease string
	hash          [32]byte     // of the exec body; zero if it never was opened
	outcome       wire.Outcome // zero if it never was opened
}

// memory remembers the newest ends, so that a late or repeated open starts
// nothing a second time. It is pure.
type memory struct {
	keep  int
	by    map[uuid.UUID]endedChannel
	order []uuid.UUID // oldest first
}

func newMemory(keep int) *memory { return &memory{keep: keep, by: map[uuid.UUID]endedChannel{}} }

func (m *memory) put(id uuid.UUID, e endedChannel) {
	if _, known := m.by[id]; !known {
		m.order = append(m.order, id)
	}
	m.by[id] = e
	for len(m.order) > m.keep {
		delete(m.by, m.order[0])
		m.order = m.order[1:]
	}
}

func (m *memory) get(id uuid.UUID) (endedChannel, bool) {
	e, ok := m.by[id]
	return e, ok
}
