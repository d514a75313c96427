package worker

import (
	"context"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// bindPatience is how long a bind waits for the sandbox before it answers
// "provisioning".
const bindPatience = 50 * time.Millisecond

// bind is wk bind.
func (w *Worker) bind(ctx context.Context, o wire.BindOrder) (wire.BindReply, error) {
	reply := wire.BindReply{Instance: w.instance, State: wire.BindProvisioning}
	if err := checkLeaseHead(o.OrderHead); err != nil {
		return reply, err
	}
	if o.Provider != "" && o.Provider != w.cfg.Provider {
		return reply, wire.Errorf(wire.CodeInvalidArgument, "the worker has no provider %q", o.Provider)
	}
	h, before, fresh, err := w.table.bind(o)
	if err != nil {
		return reply, err
	}
	if fresh {
		w.tasks.Go(func() { w.provision(ctx, h, before) })
	}
	patience := time.NewTimer(bindPatience)
	defer patience.Stop()
	select {
	case <-h.bound:
	case <-patience.C:
		return reply, nil
	case <-ctx.Done():
		return reply, errDraining()
	}
	if h.err != nil {
		return reply, h.err
	}
	reply.State = wire.BindBound
	reply.Driver = w.cfg.Driver.Name()
	reply.ProviderLeaseID = h.box.ProviderLeaseID()
	reply.Capabilities = capabilities(w.cfg.Driver)
	reply.Metadata = wire.Metadata{wire.MetadataPluginID: w.cfg.Plugin, wire.MetadataProvider: w.cfg.Provider}
	if w.cfg.Driver.Plugin() {
		reply.Metadata[wire.MetadataSandboxProviderPlugin] = w.cfg.Plugin
	}
	return reply, nil
}

func checkLeaseHead(h wire.OrderHead) error {
	if err := wire.CheckTenant(h.Tenant); err != nil {
		return err
	}
	if err := wire.CheckLeaseID(h.Lease); err != nil {
		return err
	}
	if h.Epoch.N == 0 || h.Epoch.Incarnation == "" {
		return wire.Errorf(wire.CodeInvalidArgument, "the order has no epoch")
	}
	return nil
}

// provision makes h's sandbox. What an older epoch of the lease still runs is
// ended first; its sandbox is the lease's and stays.
func (w *Worker) provision(ctx context.Context, h, before *held) {
	defer close(h.bound)
	if before != nil {
		w.endAll(w.table.of(h.lease), wire.Outcome{Kind: wire.LeaseLost})
		w.awaitDead(ctx, w.table.of(h.lease))
		<-before.bound
	}
	h.box, h.err = w.cfg.Driver.Provision(ctx, sandbox.Spec{Lease: h.lease, Tenant: h.tenant, Environment: h.environment})
	if h.err == nil {
		w.log.Info().Str("lease", h.lease).Str("sandbox", h.box.ProviderLeaseID()).Msg("lease bound")
		return
	}
	h.box = nil
	w.log.Error().Err(h.err).Str("lease", h.lease).Msg("no sandbox could be made")
	h.err = wire.AsError(h.err)
	w.table.drop(h)
}

// release is wk release. It returns when nothing of the lease is left.
func (w *Worker) release(ctx context.Context, o wire.ReleaseOrder) (wire.ReleaseReply, error) {
	reply := wire.ReleaseReply{Instance: w.instance}
	if err := checkLeaseHead(o.OrderHead); err != nil {
		return reply, err
	}
	outcome := wire.Outcome{Kind: o.Outcome}
	if outcome.Kind == "" {
		outcome.Kind = wire.LeaseReleased
	}
	h, busy, err := w.table.release(o)
	if h == nil || err != nil || busy {
		reply.Busy = busy
		return reply, err
	}
	return reply, w.tearDown(ctx, h, outcome)
}

// tearDown ends h's commands with outcome and destroys its sandbox. It may be
// called again, also after it failed.
func (w *Worker) tearDown(ctx context.Context, h *held, outcome wire.Outcome) error {
	w.endAll(w.table.of(h.lease), outcome)
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return errDraining()
	}
	defer func() { <-h.turn }()
	if h.gone {
		return nil
	}
	select {
	case <-h.bound:
	case <-ctx.Done():
		return errDraining()
	}
	w.awaitDead(ctx, w.table.of(h.lease))
	if h.box != nil {
		if err := h.box.Destroy(ctx); err != nil {
			w.log.Error().Err(err).Str("lease", h.lease).Msg("a sandbox is not destroyed yet")
			return wire.AsError(err)
		}
	}
	h.gone = true
	w.table.drop(h)
	w.log.Info().Str("lease", h.lease).Str("outcome", string(outcome.Kind)).Msg("lease released")
	return nil
}

func (w *Worker) endAll(channels []*channel, o wire.Outcome) {
	for _, c := range channels {
		c.fate.ask(o, min(c.grace(), wire.DefaultGrace))
	}
}

// awaitDead waits until no command of the channels runs any more.
func (w *Worker) awaitDead(ctx context.Context, channels []*channel) {
	for _, c := range channels {
		select {
		case <-c.dead:
		case <-ctx.Done():
			return
		}
	}
}

// capabilities is what a driver's sandboxes can do, as a plugin declares it.
func capabilities(d sandbox.Driver) (out []wire.Capability) {
	c := d.Capabilities()
	if c.Execute {
		out = append(out, wire.CapExecute)
	}
	if c.Duplex {
		out = append(out, wire.CapDuplexCommandStream)
	}
	return out
}
