package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Pace of what is repeated until a coordinator answers.
const (
	askTimeout = 5 * time.Second
	retryMin   = 250 * time.Millisecond
	retryMax   = 5 * time.Second
)

// announcer tells the coordinators who the worker is and that it lives.
type announcer struct {
	w          *Worker
	wake       chan struct{}          // capacity 1: register again
	registered chan struct{}          // closed after the first registration
	ready      chan struct{}          // closed after the first beat
	body       atomic.Pointer[[]byte] // of the last register request; never altered
	seq        atomic.Uint64          // of the last beat
}

func newAnnouncer(w *Worker) *announcer {
	return &announcer{
		w: w, wake: make(chan struct{}, 1),
		registered: make(chan struct{}), ready: make(chan struct{}),
	}
}

// again asks for a new registration. It does not wait.
func (a *announcer) again() {
	select {
	case a.wake <- struct{}{}:
	default: // one pending wake-up is enough
	}
}

// isRegistered reports whether coordinators have taken this instance as the
// holder of the worker's id.
func (a *announcer) isRegistered() bool {
	select {
	case <-a.registered:
		return true
	default:
		return false
	}
}

// register registers until a coordinator has answered, and again after every
// wake-up, until ctx ends (nil) or the worker is refused.
func (a *announcer) register(ctx context.Context, conn *natsbus.Conn) error {
	for gap := retryMin; ; {
		select {
		case <-a.wake: // the connection came up before this attempt
		default:
		}
		err := a.registerOnce(ctx, conn)
		switch code := wire.CodeOf(err); {
		case err == nil:
			gap = retryMin
			if !a.isRegistered() {
				a.w.log.Info().Str("route", a.w.route).Msg("registered")
				close(a.registered)
			}
			select {
			case <-a.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		case ctx.Err() != nil:
			return nil
		case refusedForGood(code):
			return err
		}
		a.w.log.Info().Err(err).Msg("not registered yet; asking again")
		select {
		case <-a.wake:
		case <-time.After(gap/2 + rand.N(gap)):
			gap = min(2*gap, retryMax)
		case <-ctx.Done():
			return nil
		}
	}
}

func refusedForGood(c wire.Code) bool {
	switch c {
	case wire.CodeConflict, wire.CodeUnsupportedVersion, wire.CodeInvalidArgument,
		wire.CodePermissionDenied, wire.CodeUnauthenticated:
		return true
	}
	return false
}

func (a *announcer) registerOnce(ctx context.Context, conn *natsbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Only who can be reached is announced: the server has every subscription.
	if err := conn.Flush(ctx); err != nil {
		return err
	}
	body := wire.Encode(a.w.describe())
	a.body.Store(&body)
	_, err := conn.Request(ctx, subjects.ToCoordinator(a.w.cfg.ID, subjects.WRRegister), body)
	return err
}

// describe is the worker as it registers.
func (w *Worker) describe() wire.RegisterRequest {
	c := w.cfg.Driver.Capabilities()
	r := wire.RegisterRequest{
		ProtocolVersion: wire.Version, Worker: w.cfg.ID, Instance: w.instance, HostBootID: bootID(),
		Route: w.route, PluginID: w.cfg.Plugin, Labels: w.cfg.Labels, Slots: w.cfg.Slots,
		Providers: []wire.Provider{{
			Name: w.cfg.Provider, Driver: w.cfg.Driver.Name(), Duplex: c.Duplex,
			Isolation: c.Isolation, TreeKill: c.TreeKill, Capabilities: capabilities(w.cfg.Driver),
		}},
		Inventory: w.table.inventory(),
	}
	if c.Duplex {
		r.Verbs = append(r.Verbs, subjects.APIOpen)
	}
	if c.Execute {
		r.Verbs = append(r.Verbs, subjects.APIExecute)
	}
	return r
}

// bootID is "" where the system does not tell.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b))
}

func (t *table) inventory() (inv wire.Inventory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.leases {
		inv.Leases = append(inv.Leases, wire.InventoryLease{Tenant: h.tenant, Lease: h.lease, Epoch: h.epoch})
	}
	for id, c := range t.open {
		inv.Channels = append(inv.Channels, wire.InventoryChannel{Tenant: c.order.Tenant, Lease: c.order.Lease, Channel: id})
	}
	return inv
}

// beat beats from the first registration until ctx ends. Nothing else uses its
// connection, so that no work keeps a beat back.
func (a *announcer) beat(ctx context.Context, conn *natsbus.Conn) {
	select {
	case <-a.registered:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(beatPeriod)
	defer tick.Stop()
	a.send(conn, wire.Beat{State: a.w.table.state()})
	// Without an answer the beat may be late, but the worker is announced.
	if err := conn.Flush(ctx); err != nil {
		a.w.log.Debug().Err(err).Msg("the first beat was not confirmed")
	}
	close(a.ready)
	for {
		select {
		case <-tick.C:
			a.send(conn, wire.Beat{State: a.w.table.state()})
		case <-ctx.Done():
			return
		}
	}
}

func (a *announcer) send(conn *natsbus.Conn, b wire.Beat) {
	b.Instance, b.Seq, b.SlotsUsed = a.w.instance, a.seq.Add(1), a.w.Stats().Leases
	if body := a.body.Load(); body != nil {
		sum := sha256.Sum256(*body)
		b.Description = hex.EncodeToString(sum[:16])
	}
	// A beat that does not leave is missed like any other.
	if err := conn.Publish(subjects.Heartbeat(a.w.cfg.ID), wire.Encode(b)); err != nil {
		a.w.log.Debug().Err(err).Msg("beat not sent")
	}
}

// goodbye is the last beat, if the worker was ever announced.
func (a *announcer) goodbye(conn *natsbus.Conn, cause error) {
	if !a.isRegistered() || wire.CodeOf(cause) == wire.CodeConflict {
		return
	}
	reason := "stopped"
	if cause != nil {
		reason = string(wire.CodeOf(cause))
	}
	a.send(conn, wire.Beat{State: wire.WorkerGoodbye, Reason: reason})
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeBound)
	defer cancel()
	if err := conn.Flush(ctx); err != nil {
		a.w.log.Info().Err(err).Msg("the goodbye may not have arrived")
	}
}
