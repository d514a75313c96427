package lease

import (
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/wire"
)

// State is where a lease is in its life. The values are stored.
type State string

// The states.
const (
	Pending        State = "pending"
	Active         State = "active"
	Retained       State = "retained"
	PendingCleanup State = "pending_cleanup"
	Released       State = "released"
	Expired        State = "expired"
	Lost           State = "lost"
	Failed         State = "failed"
)

// next is the whole table of moves; a state without an entry is final.
var next = map[State][]State{
	Pending:        {Pending, Active, Failed, Released, PendingCleanup},
	Active:         {Active, Retained, Expired, Lost, PendingCleanup},
	Retained:       {Active, Expired, Lost, PendingCleanup},
	PendingCleanup: {PendingCleanup, Released, Expired, Failed},
}

// CanBecome reports whether a record may move from s to to. A state that may
// follow itself is one in which fields may change.
func (s State) CanBecome(to State) bool {
	for _, n := range next[s] {
		if n == to {
			return true
		}
	}
	return false
}

// Ended reports whether s is final.
func (s State) Ended() bool {
	return s == Released || s == Expired || s == Lost || s == Failed
}

func (s State) known() bool {
	_, moves := next[s]
	return moves || s.Ended()
}

// Policy is what becomes of the sandbox when its holder is done.
type Policy string

// The policies.
const (
	Ephemeral          Policy = "ephemeral"
	ReuseByEnvironment Policy = "reuse_by_environment"
	RetainOnFailure    Policy = "retain_on_failure"
)

// Times of a lease on the coordinators' wall clocks, UTC.
type Times struct {
	Created      time.Time `json:"created"`
	Changed      time.Time `json:"changed"` // last move
	Bound        time.Time `json:"bound,omitzero"`
	Renewed      time.Time `json:"renewed"`
	Ended        time.Time `json:"ended,omitzero"`
	LifeEnds     time.Time `json:"lifeEnds"`              // hard
	ProviderEnds time.Time `json:"providerEnds,omitzero"` // hard; zero: the provider named none
}

// Requested is what the holder asked for, kept to place the lease again.
type Requested struct {
	Plugin   string            `json:"plugin,omitempty"`
	Provider string            `json:"provider,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Key      string            `json:"key"`  // idempotency key
	Hash     string            `json:"hash"` // RequestHash
}

// Place is where the sandbox is, or is being made.
type Place struct {
	Worker   string `json:"worker,omitempty"`
	Instance string `json:"instance,omitempty"`
	Route    string `json:"route,omitempty"`
	Provider string `json:"provider,omitempty"`
}

// Sandbox is the worker's word on what it made; empty until Bound.
type Sandbox struct {
	Driver          string            `json:"driver,omitempty"`
	ProviderLeaseID string            `json:"providerLeaseId,omitempty"`
	Metadata        wire.Metadata     `json:"metadata,omitempty"`
	Capabilities    []wire.Capability `json:"capabilities,omitempty"`
}

// Cleanup is a teardown that was begun and is not confirmed.
type Cleanup struct {
	For      State     `json:"for"`      // released, expired or failed: how it ends if the first try succeeds
	Attempts int       `json:"attempts"` // that failed
	After    time.Time `json:"after"`    // not tried again before
}

// Record is one lease as stored. Treat it as a value: its maps and slices are
// shared between copies and never written to.
type Record struct {
	ID          string            `json:"id"`
	Tenant      string            `json:"tenant"`
	Environment string            `json:"environment,omitempty"`
	Holder      string            `json:"holder,omitempty"`
	Policy      Policy            `json:"policy"`
	State       State             `json:"state"`
	Reason      string            `json:"reason,omitempty"`
	Epoch       wire.Epoch        `json:"epoch"`
	TTLMS       int64             `json:"ttlMs"`
	Requested   Requested         `json:"requested"`
	Place       Place             `json:"place"`
	Sandbox     Sandbox           `json:"sandbox"`
	Narrowed    []wire.Capability `json:"narrowed,omitempty"` // withdrawn on this lease
	Cleanup     *Cleanup          `json:"cleanup,omitempty"`
	Times       Times             `json:"times"`
}

// Limits and defaults of an acquire.
const (
	DefaultTTL = 30 * time.Second
	MinTTL     = time.Second
	MaxTTL     = time.Hour
	MaxLife    = 7 * 24 * time.Hour // also the default
	MaxKey     = 128                // bytes of an idempotency key
)

// ID is the id of the lease that tenant acquires with an idempotency key: a
// version 5 UUID, so that a repeated acquire finds the record of the first.
func ID(tenant, key string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte("weft lease\x00"+tenant+"\x00"+key)).String()
}
