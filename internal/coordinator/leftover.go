package coordinator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// reportTime is what a worker has to report the ends of a lease's channels, which
// it knows better, after the lease's end is on record. It repeats a report that
// was not answered after some 10 s at most.
const reportTime = 15 * time.Second

// unopened looks into opens that nobody goes on with: their coordinator died
// between the record and the worker's answer, or the store took a record and its
// answer was lost. The worker has the word: what it runs was perhaps answered to
// a client and is not ended for a coordinator's sake.
func (j *janitor) unopened(ctx context.Context) {
	before := time.Now().Add(-j.channels.limits.Open - storeTimeout)
	by := map[registry.Target][]channel.Record{}
	for key, e := range firstOf(j.store.channels.all(func(_ string, r channel.Record) bool {
		return r.State == channel.Opening && r.Created.Before(before)
	})) {
		// Whom nobody hears is lost in time, and what is on record for it with it.
		if at := channelTarget(e.rec); !j.channels.atWork(key) && j.fleet.live(at) {
			by[at] = append(by[at], e.rec)
		}
	}
	for at, records := range by {
		runs, err := j.channelsOf(ctx, at)
		if err != nil {
			j.log.Warn().Err(err).Str("worker", at.Worker).Int("channels", len(records)).Msg("a worker does not tell what it runs; opens that were not recorded stay so")
			continue
		}
		for _, r := range records {
			if runs[r.ID] {
				j.lateOpened(ctx, r)
				continue
			}
			// An order that is still on its way must not start anything any more.
			if err := j.channels.tellClose(ctx, r, wire.Unknown, "its open was given up"); err != nil {
				j.log.Debug().Err(err).Str("channel", r.ID.String()).Msg("the worker was not told that an open is given up")
			}
			j.endAs(ctx, r, wire.Unknown)
		}
	}
}

// channelsOf asks an instance which channels it has.
func (j *janitor) channelsOf(ctx context.Context, at registry.Target) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var body json.RawMessage
	order := wire.ProbeOrder{OrderHead: head("", at.Worker, at.Instance, "", wire.Epoch{})}
	if err := j.fleet.orders.send(ctx, at.Worker, subjects.WKInventory, order, nil, &body); err != nil {
		return nil, err
	}
	req, err := decodeRegister(body)
	if err != nil || req.Instance != at.Instance {
		return nil, errReply
	}
	has := map[uuid.UUID]bool{}
	for _, c := range req.Inventory.Channels {
		has[c.Channel] = true
	}
	return has, nil
}

// lateOpened records what a worker runs as open. Its first grant of credit is not
// known any more: a client without one asks.
func (j *janitor) lateOpened(ctx context.Context, r channel.Record) {
	_, _, err := j.store.channels.modify(ctx, keyOf(r), func(r channel.Record) (channel.Record, error) {
		if r.State != channel.Opening {
			return r, errUnchanged
		}
		return r.WithOpened(time.Now(), wire.UpCredit{})
	})
	j.log.Info().AnErr("failed", err).Str("channel", r.ID.String()).Str("worker", r.Home.Worker).Msg("a channel that runs was not on record as open")
}

// leftBehind ends the channels of leases that have ended.
func (j *janitor) leftBehind(ctx context.Context) {
	over := map[string]wire.OutcomeKind{} // by the lease's key
	j.store.channels.count(func(_ string, r channel.Record) bool {
		if r.State != channel.Ended {
			over[leaseKey(r.Tenant, r.Lease)] = ""
		}
		return false
	})
	before := time.Now().Add(-reportTime)
	for key := range over {
		if e, ok := j.store.leases.peek(key); ok && e.rec.State.Ended() && e.rec.Times.Ended.Before(before) {
			over[key] = endWith(e.rec.State)
		} else {
			delete(over, key)
		}
	}
	if len(over) == 0 {
		return
	}
	for _, e := range firstOf(j.store.channels.all(func(_ string, r channel.Record) bool {
		return r.State != channel.Ended && over[leaseKey(r.Tenant, r.Lease)] != ""
	})) {
		j.endAs(ctx, e.rec, over[leaseKey(e.rec.Tenant, e.rec.Lease)])
	}
}

// endWith is how a channel ends with its lease.
func endWith(s lease.State) wire.OutcomeKind {
	switch s {
	case lease.Expired:
		return wire.LeaseExpired
	case lease.Lost:
		return wire.LeaseLost
	}
	return wire.LeaseReleased
}
