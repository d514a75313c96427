package coordinator

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Pace of the periodic jobs. Every coordinator runs them: each is a
// compare-and-set or an order with an epoch, and may run twice.
const (
	janitorEvery = time.Second
	janitorBatch = 100 // records of one kind per round
)

// Which ended leases are listed: those of the last days, as many as bear being
// kept in memory.
const (
	leasesListed    = 7 * 24 * time.Hour
	maxLeasesListed = 5000
)

// janitor carries out what time brings: lost workers, grants that came to
// nothing, teardowns to try again, channels on record that nobody else will end,
// logs of ended channels.
type janitor struct {
	store    *store
	leases   *leases
	channels *channels
	fleet    *fleet
	logs     *logs
	log      zerolog.Logger
}

func (j *janitor) run(ctx context.Context) {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			j.lost(ctx)
			j.unfinished(ctx)
			j.unopened(ctx)
			j.leftBehind(ctx)
			j.old(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// lost ends what was on instances that are gone.
func (j *janitor) lost(ctx context.Context) {
	onRecord := map[registry.Target]bool{}
	j.store.leases.count(func(_ string, r lease.Record) bool {
		if !r.State.Ended() && r.Place.Worker != "" {
			onRecord[leaseTarget(r)] = true
		}
		return false
	})
	j.store.channels.count(func(_ string, r channel.Record) bool {
		if r.State != channel.Ended {
			onRecord[channelTarget(r)] = true
		}
		return false
	})
	gone := j.fleet.lost(onRecord)
	if len(gone) == 0 {
		return
	}
	// Channels first: whoever waits for one learns the end that its log has.
	for _, e := range j.store.channels.all(func(_ string, r channel.Record) bool {
		return r.State != channel.Ended && gone[channelTarget(r)] != ""
	}) {
		j.lostChannel(ctx, e.rec)
	}
	for key, e := range j.store.leases.all(func(_ string, r lease.Record) bool {
		return !r.State.Ended() && gone[leaseTarget(r)] != ""
	}) {
		j.lostLease(ctx, key, gone[leaseTarget(e.rec)])
	}
}

func leaseTarget(r lease.Record) registry.Target {
	return registry.Target{Worker: r.Place.Worker, Instance: r.Place.Instance}
}

func channelTarget(r channel.Record) registry.Target {
	return registry.Target{Worker: r.Home.Worker, Instance: r.Home.Instance}
}

// lostChannel ends a channel with the EXIT that its log ends with, or else as
// worker_lost.
func (j *janitor) lostChannel(ctx context.Context, r channel.Record) {
	j.endAs(ctx, r, wire.WorkerLost)
}

// endAs ends a channel with the EXIT that its log ends with, or else as kind.
func (j *janitor) endAs(ctx context.Context, r channel.Record, kind wire.OutcomeKind) {
	exit, err := j.logs.exit(ctx, logChannel(r), r.Secret)
	if err != nil {
		j.log.Warn().Err(err).Str("channel", r.ID.String()).Stringer("outcome", wire.Outcome{Kind: kind}).
			Msg("the log cannot be read; the end of a channel is not recorded yet")
		return
	}
	outcome, totals := wire.Outcome{Kind: kind}, (*wire.Totals)(nil)
	if exit != nil && knownOutcome(exit.Outcome) {
		outcome, totals = clean(exit.Outcome), &exit.Totals
	}
	_, _, err = j.store.channels.modify(ctx, keyOf(r), func(r channel.Record) (channel.Record, error) {
		next, changed := r.WithEnd(time.Now(), channel.ByCoordinator, outcome, totals)
		if !changed {
			return r, errUnchanged
		}
		return next, nil
	})
	j.log.Info().AnErr("failed", err).Str("channel", r.ID.String()).Str("worker", r.Home.Worker).Stringer("outcome", outcome).Msg("a channel that its worker did not end was ended")
}

func logChannel(r channel.Record) subjects.Channel {
	return subjects.Channel{Tenant: r.Tenant, Route: r.Home.Route, Lease: r.Lease, Channel: r.ID.String()}
}

func (j *janitor) lostLease(ctx context.Context, key, reason string) {
	_, _, err := j.store.leases.modify(ctx, key, func(r lease.Record) (lease.Record, error) {
		now := time.Now()
		switch r.State {
		case lease.Pending:
			return r.Failed(now, "the worker was lost")
		case lease.PendingCleanup:
			return r.Expired(now, "the worker was lost before it confirmed")
		case lease.Active, lease.Retained:
			return r.Lost(now, reason)
		}
		return r, errUnchanged
	})
	j.log.Info().AnErr("failed", err).Str("lease", key).Str("reason", reason).Msg("lease of a lost worker ended")
}

// unfinished goes on with grants and teardowns that were begun.
func (j *janitor) unfinished(ctx context.Context) {
	now := time.Now()
	overdue := func(_ string, r lease.Record) bool {
		switch r.State {
		case lease.Pending:
			return now.Sub(r.Times.Changed) > j.leases.limits.Bind+storeTimeout
		case lease.PendingCleanup:
			// The first try belongs to who began the teardown, if that one lives.
			return now.After(r.Cleanup.After) && (r.Cleanup.Attempts > 0 || now.Sub(r.Times.Changed) > releaseTimeout)
		}
		return false
	}
	for key, e := range firstOf(j.store.leases.all(overdue)) {
		if e.rec.State == lease.Pending {
			var err error
			e, _, err = j.store.leases.modify(ctx, key, func(r lease.Record) (lease.Record, error) {
				return r.Abandon(time.Now(), "it was not bound in time")
			})
			if err != nil {
				j.log.Warn().Err(err).Str("lease", key).Msg("an overdue grant is not given up yet")
				continue
			}
		}
		ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
		j.leases.teardown(ctx, e, wire.LeaseReleased)
		cancel()
	}
}

// old drops what ended long ago from memory, and channels from the log, where
// nobody reads them any more.
func (j *janitor) old(ctx context.Context) {
	before := time.Now().Add(-purgeAfter)
	for key, e := range firstOf(j.store.channels.all(func(_ string, r channel.Record) bool {
		return r.End != nil && r.End.At.Before(before)
	})) {
		// What is older than the log keeps anything needs no purge.
		if time.Since(e.rec.End.At) < logMaxAge+purgeAfter {
			if err := j.logs.purge(ctx, logChannel(e.rec)); err != nil {
				j.log.Warn().Err(err).Str("channel", e.rec.ID.String()).Msg("purge the log")
				return
			}
		}
		j.store.channels.forget(key, e.rev)
	}
	j.oldLeases(before)
}

// oldLeases drops ended leases from memory, and so from the lists: what ended
// long ago and, of what ended before the time given, all but the newest.
func (j *janitor) oldLeases(before time.Time) {
	longAgo, past, many := time.Now().Add(-leasesListed), 0, 0
	ended := func(r lease.Record, t time.Time) bool { return r.State.Ended() && r.Times.Ended.Before(t) }
	j.store.leases.count(func(_ string, r lease.Record) bool {
		if ended(r, before) {
			many++
		}
		if ended(r, longAgo) {
			past++
		}
		return false
	})
	drop := max(past, many-maxLeasesListed)
	if drop <= 0 {
		return
	}
	found := j.store.leases.all(func(_ string, r lease.Record) bool { return ended(r, before) })
	oldest := slices.SortedFunc(maps.Keys(found), func(a, b string) int {
		return found[a].rec.Times.Ended.Compare(found[b].rec.Times.Ended)
	})
	for _, key := range oldest[:min(drop, len(oldest))] {
		j.store.leases.forget(key, found[key].rev)
	}
}

// firstOf bounds the work of one round.
func firstOf[T any](m map[string]T) map[string]T {
	n := 0
	for k := range m {
		if n++; n > janitorBatch {
			delete(m, k)
		}
	}
	return m
}
