package worker

import (
	"math"
	"sync"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// held is one lease at one epoch; a higher epoch is a new held.
type held struct {
	// Set once.
	tenant, lease, environment string
	epoch                      wire.Epoch
	bound                      chan struct{} // closed when box or err is set
	turn                       chan struct{} // capacity 1: taken by the one that tears it down

	box sandbox.Sandbox // set before bound is closed
	err error           // likewise

	ending  bool       // no command may start; guarded by the table
	endedAt wire.Epoch // of the release that ended it; guarded by the table
	running int        // channels whose process is not over; guarded by the table
	untaken int        // channels that have ended, but are not forgotten; guarded by the table

	shared, spare *duplex.Pool // set once; of the lease, see pool
	shares        int          // set once: ends that have one in shared

	gone bool // torn down; guarded by turn
}

func (t *table) newHeld(o wire.BindOrder) *held {
	shared := duplex.NewPool(t.inFlightLease, t.shares(), t.inFlight)
	return &held{
		tenant: o.Tenant, lease: o.Lease, environment: o.Environment, epoch: o.Epoch,
		bound: make(chan struct{}), turn: make(chan struct{}, 1),
		// No bound and no shares of its own: its ends borrow everything.
		shared: shared, spare: duplex.NewPool(math.MaxInt64/2, math.MaxInt64, shared), shares: t.shares(),
	}
}

// shares is how many ends of a lease have bytes in flight that are always theirs.
func (t *table) shares() int { return 2 * t.channels }

// pool is for one more end on the lease. Called with the table's mu held.
func (h *held) pool() *duplex.Pool {
	if h.running+h.untaken < h.shares {
		return h.shared
	}
	return h.spare
}

// sandbox is the lease's, nil while or unless it is bound.
func (h *held) sandbox() sandbox.Sandbox {
	select {
	case <-h.bound:
		return h.box
	default:
		return nil
	}
}

// table is what the worker holds. Nothing waits while mu is held.
type table struct {
	slots         int
	channels      int // default limit per lease
	untaken       int // channels of a lease that have ended and are kept for their readers
	inFlight      *duplex.Pool
	inFlightLease int64 // bytes

	mu       sync.Mutex // guards all below
	draining bool
	epochs   *epochs
	leases   map[string]*held
	open     map[uuid.UUID]*channel // until they are forgotten
	ended    *memory
}

func newTable(c Config) *table {
	t := &table{
		slots: c.Slots, channels: c.Limits.Channels, untaken: c.Limits.Untaken,
		epochs: newEpochs(c.Limits.Ended), leases: map[string]*held{},
		open: map[uuid.UUID]*channel{}, ended: newMemory(c.Limits.Ended),
		inFlightLease: c.Limits.InFlightLease,
	}
	t.inFlight = duplex.NewPool(c.Limits.InFlightWorker, c.Slots*t.shares(), nil)
	return t
}

// Stats is what a worker holds now.
type Stats struct {
	Leases   int
	Running  int // commands
	Channels int // the running ones and those whose end is not yet taken
	Ended    int // ends that are remembered
	Draining bool
	Spilled  int64            // bytes of output on disk
	Bus      natsbus.Counters // of the connection that carries channels
}

func (t *table) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{Leases: len(t.leases), Channels: len(t.open), Ended: len(t.ended.by), Draining: t.draining}
	for _, c := range t.open {
		if c.outcome == nil {
			s.Running++
		}
	}
	return s
}

// drain refuses new leases and channels from now on and returns what is there.
func (t *table) drain() (leases []*held, channels []*channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	for _, h := range t.leases {
		leases = append(leases, h)
	}
	for _, c := range t.open {
		channels = append(channels, c)
	}
	return leases, channels
}

// state is how the worker describes itself.
func (t *table) state() wire.WorkerState {
	if t.stats().Draining {
		return wire.WorkerDraining
	}
	return wire.WorkerReady
}

// all returns the channels that are not forgotten.
func (t *table) all() []*channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*channel, 0, len(t.open))
	for _, c := range t.open {
		out = append(out, c)
	}
	return out
}

// channel finds a tenant's channel, nil if it is not known here.
func (t *table) channel(id uuid.UUID, tenant string) *channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.open[id]; c != nil && c.order.Tenant == tenant {
		return c
	}
	return nil
}

// of returns the channels of a lease, at whatever epoch.
func (t *table) of(lease string) (out []*channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.open {
		if c.order.Lease == lease {
			out = append(out, c)
		}
	}
	return out
}

// bind finds or makes the held of an order. fresh says that its sandbox has to
// be provisioned; before is the same lease at an older epoch, to be ended first.
func (t *table) bind(o wire.BindOrder) (h, before *held, fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return nil, nil, false, errDraining()
	}
	if err := t.epochs.check(o.Lease, o.Epoch); err != nil {
		return nil, nil, false, err
	}
	h = t.leases[o.Lease]
	switch {
	case h == nil:
		if len(t.leases) >= t.slots {
			return nil, nil, false, wire.Errorf(wire.CodeQuotaExceeded, "all %d slots of the worker are in use; use another worker or release a lease", t.slots)
		}
	case h.tenant != o.Tenant:
		return nil, nil, false, wire.Errorf(wire.CodeConflict, "the lease id is in use")
	case h.ending:
		return nil, nil, false, wire.Errorf(wire.CodeStaleEpoch, "the lease is being released on this worker; acquire a new one")
	case h.epoch == o.Epoch:
		return h, nil, false, nil
	default:
		before = h
		before.ending = true
	}
	h = t.newHeld(o)
	t.leases[o.Lease] = h
	t.epochs.bound(o.Lease, o.Epoch)
	return h, before, true, nil
}

// drop forgets h unless a newer epoch has taken its place: nothing of its epoch
// is obeyed any more.
func (t *table) drop(h *held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leases[h.lease] != h {
		return
	}
	delete(t.leases, h.lease)
	if t.epochs.check(h.lease, h.epoch) == nil {
		t.epochs.end(h.lease, h.epoch)
	}
}

// release ends the use of a lease by an order; nil if it is not held. busy says
// that commands run and only an idle lease was to end.
func (t *table) release(o wire.ReleaseOrder) (h *held, busy bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h = t.leases[o.Lease]
	if h != nil && h.tenant != o.Tenant {
		return nil, false, wire.Errorf(wire.CodeConflict, "the lease id is in use")
	}
	if h != nil && h.ending && (h.epoch == o.Epoch || h.endedAt == o.Epoch) {
		return h, false, nil // asked for again while it goes on, or after it failed
	}
	if h == nil {
		if t.epochs.check(o.Lease, o.Epoch) == nil {
			t.epochs.end(o.Lease, o.Epoch)
		}
		return nil, false, nil
	}
	if err := t.epochs.check(o.Lease, o.Epoch); err != nil {
		return nil, false, err
	}
	if o.Expire && h.running > 0 {
		return h, true, nil
	}
	h.ending, h.endedAt = true, o.Epoch
	t.epochs.end(o.Lease, o.Epoch)
	return h, false, nil
}

func errDraining() error {
	return wire.Errorf(wire.CodeWorkerDraining, "the worker is stopping and takes nothing new; acquire a lease on another")
}
