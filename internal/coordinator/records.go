package coordinator

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// find returns a channel record; NOT_FOUND is the same for unknown and foreign.
func (c *channels) find(ctx context.Context, tenant, leaseID string, id uuid.UUID) (entry[channel.Record], error) {
	var e entry[channel.Record]
	if err := wire.CheckTenant(tenant); err != nil {
		return e, err
	}
	if err := wire.CheckLeaseID(leaseID); err != nil {
		return e, err
	}
	if err := wire.CheckChannelID(id); err != nil {
		return e, err
	}
	key := channelKey(tenant, leaseID, id)
	e, ok := c.store.channels.peek(key)
	if !ok {
		var err error
		if e, ok, err = c.store.channels.load(ctx, key); err != nil {
			return e, err
		}
	}
	if !ok {
		return e, channel.NotFound()
	}
	return e, nil
}

// view shows a channel and, while it runs, how its worker is seen.
func (c *channels) view(r channel.Record) wire.Channel {
	v := r.View()
	if r.State == channel.Ended {
		return v
	}
	c.fleet.with(func(t *registry.Table, now time.Time) {
		if w, ok := t.View(now, r.Home.Worker); ok && w.Instance == r.Home.Instance {
			v.WorkerState, v.WorkerAgeMS = w.State, w.AgeMS
		}
	})
	return v
}

// get is api channel.
func (c *channels) get(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.ChannelRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	e, err := c.find(ctx, to.Tenant, req.Lease, req.Channel)
	if err != nil {
		return nil, err
	}
	return wire.ChannelReply{Channel: c.view(e.rec)}, nil
}

// kill is api kill. The end is recorded when the worker reports it.
func (c *channels) kill(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.ChannelRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	e, err := c.find(ctx, to.Tenant, req.Lease, req.Channel)
	if err != nil {
		return nil, err
	}
	if e.rec.State != channel.Ended {
		if err := c.tellClose(ctx, e.rec, wire.EndedByRequest, "killed by its tenant"); err != nil {
			if code := wire.CodeOf(err); code != "" && code != wire.CodeNotFound {
				return nil, refusalByCode(code)
			} else if code == "" {
				return nil, gate.WorkerNotRunning()
			}
		}
	}
	return wire.ChannelReply{Channel: c.view(e.rec)}, nil
}

// ended is wr ended: the first writer wins, and both are told what is on record.
func (c *channels) ended(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.EndedRequest
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return nil, err
	}
	if !knownOutcome(req.Outcome) {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "outcome is none of weft's")
	}
	c.fleet.heard(registry.Target{Worker: to.Worker, Instance: req.Instance})
	e, err := c.find(ctx, req.Tenant, req.Lease, req.Channel)
	if err != nil {
		return nil, err
	}
	if e.rec.Home.Worker != to.Worker || e.rec.Home.Instance != req.Instance {
		return nil, channel.NotFound()
	}
	e, found, err := c.store.channels.modify(ctx, keyOf(e.rec), func(r channel.Record) (channel.Record, error) {
		next, changed := r.WithEnd(time.Now(), channel.ByWorker, clean(req.Outcome), &req.Totals)
		if !changed {
			return r, errUnchanged
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	if !found {
		// Only the table had it: the store was emptied. The worker need not go on.
		return nil, channel.NotFound()
	}
	return wire.EndedReply{Outcome: e.rec.Outcome()}, nil
}

// knownOutcome reports whether a worker's word is one of the closed list.
func knownOutcome(o wire.Outcome) bool {
	switch o.Kind {
	case wire.Exited:
		return o.Code != nil
	case wire.Signaled:
		return o.Signal != ""
	case wire.TimedOut, wire.EndedByRequest, wire.ClientLost, wire.LeaseExpired, wire.LeaseReleased, wire.LeaseLost,
		wire.WorkerLost, wire.WorkerDrained, wire.Revoked, wire.LimitExceeded, wire.Stalled, wire.StartFailed, wire.DataLost, wire.Unknown:
		return true
	}
	return false
}

// clean drops texts of a worker that are not fit to be shown.
func clean(o wire.Outcome) wire.Outcome {
	for _, s := range []*string{&o.Reason, &o.Signal, &o.Drain} {
		if wire.CheckName("text", *s, 256) != nil {
			*s = ""
		}
	}
	return o
}

// page cuts a listing: the entries after cursor, in the order of their keys, as
// long as they fit into a reply.
func page[T, V any](entries map[string]entry[T], cursor string, view func(T) V) (out []V, next string) {
	const room = maxReply - 8<<10
	size := 0
	out = []V{} // an empty list is shown as one, not as null
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if key <= cursor {
			continue
		}
		v := view(entries[key].rec)
		data, err := json.Marshal(v)
		if err != nil {
			continue
		}
		if size += len(data) + 1; size > room {
			return out, next
		}
		out, next = append(out, v), key
	}
	return out, ""
}

// checkCursor refuses what page did not write.
func checkCursor(s string) error {
	for t := range strings.SplitSeq(s, ".") {
		if s != "" && subjects.CheckToken(t) != nil {
			return wire.Errorf(wire.CodeInvalidArgument, "cursor is not one that a list has returned")
		}
	}
	return nil
}

// list is api list and op leases; the latter has no tenant in its subject and
// shows all.
func (l *leases) list(_ context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.ListRequest
	if err := decodeList(body, &req); err != nil {
		return nil, err
	}
	found := l.store.leases.all(func(_ string, r lease.Record) bool { return to.Tenant == "" || r.Tenant == to.Tenant })
	var out wire.LeaseList
	out.Leases, out.Next = page(found, req.Cursor, l.view)
	return out, nil
}

// list is api channels and op channels.
func (c *channels) list(_ context.Context, to subjects.Subject, body []byte) (any, error) {
	var req wire.ListRequest
	if err := decodeList(body, &req); err != nil {
		return nil, err
	}
	found := c.store.channels.all(func(_ string, r channel.Record) bool {
		return (to.Tenant == "" || r.Tenant == to.Tenant) && (req.Lease == "" || r.Lease == req.Lease)
	})
	var out wire.ChannelList
	out.Channels, out.Next = page(found, req.Cursor, c.view)
	return out, nil
}

func decodeList(body []byte, req *wire.ListRequest) error {
	if err := wire.DecodeStrict(body, wire.MaxControlBody, req); err != nil {
		return err
	}
	if req.Lease != "" {
		if err := wire.CheckLeaseID(req.Lease); err != nil {
			return err
		}
	}
	return checkCursor(req.Cursor)
}
