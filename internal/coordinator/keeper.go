package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/subjects"
)

// Pace and marks of the keeper.
const (
	lookEvery    = 5 * time.Second
	sweepEvery   = time.Minute
	strangerAge  = time.Minute // how long an unknown subject is left alone
	maxStrangers = 10_000      // unknown subjects remembered per tenant
	trimBatch    = 16          // purges between two looks at the size

	roundTimeout = 30 * time.Second // over one tenant

	// Per cent of a log's size. Above the first ended channels make room; at the
	// second, used or reserved, no channel is opened any more.
	logTrimAt = 60
	logFullAt = 80
)

// logUse is how much of a log is used, in bytes.
type logUse struct{ used, size int64 }

func (u logUse) above(percent int64) bool { return u.size > 0 && u.used > u.size/100*percent }

func (l *logs) note(tenant string, u logUse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.use == nil {
		l.use = map[string]logUse{}
	}
	l.use[tenant] = u
}

// room reports whether the log may have this many bytes reserved. A size that
// was not seen yet refuses nothing: the publish itself would be.
func (l *logs) room(tenant string, reserved int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.use[tenant]
	return !u.above(logFullAt) && !logUse{reserved, u.size}.above(logFullAt)
}

// keeper keeps the logs from filling up. Every coordinator has one; what it
// purges may be purged twice.
type keeper struct {
	store *store
	logs  *logs
	log   zerolog.Logger

	// Owned by run.
	pressed   map[string]bool                 // tenants whose log is above the first mark
	strangers map[string]map[string]time.Time // by tenant and subject, since when
}

func newKeeper(s *store, l *logs, log zerolog.Logger) *keeper {
	return &keeper{store: s, logs: l, log: log, pressed: map[string]bool{}, strangers: map[string]map[string]time.Time{}}
}

func (k *keeper) run(ctx context.Context) {
	look, sweep := time.NewTicker(lookEvery), time.NewTicker(sweepEvery)
	defer look.Stop()
	defer sweep.Stop()
	for {
		job := k.look
		select {
		case <-look.C:
		case <-sweep.C:
			job = func(ctx context.Context, tenant string) error { return k.sweep(ctx, tenant, time.Now()) }
		case <-ctx.Done():
			return
		}
		for _, t := range k.logs.tenants {
			err := k.round(ctx, t, job)
			// A log that is away is made again elsewhere, and its loss told there.
			if err != nil && ctx.Err() == nil && !errors.Is(err, errNoLog) && apiCode(err) != errNoStream {
				k.log.Warn().Err(err).Str("tenant", t).Msg("keep the log in order")
			}
		}
	}
}

func (k *keeper) round(ctx context.Context, tenant string, job func(context.Context, string) error) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	return job(ctx, tenant)
}

// look measures a log and makes room if it has to.
func (k *keeper) look(ctx context.Context, tenant string) error {
	use, err := k.logs.measure(ctx, tenant)
	if err != nil {
		return err
	}
	if use.above(logTrimAt) {
		if err := k.sweep(ctx, tenant, time.Now()); err != nil {
			return err
		}
		if use, err = k.trim(ctx, tenant); err != nil {
			return err
		}
	}
	pressed := use.above(logTrimAt)
	if pressed != k.pressed[tenant] {
		k.pressed[tenant] = pressed
		level := zerolog.InfoLevel
		if pressed {
			level = zerolog.ErrorLevel
		}
		k.log.WithLevel(level).Str("alarm", "log_pressure").Bool("raised", pressed).Str("tenant", tenant).
			Int64("bytes", use.used).Int64("of", use.size).Bool("full", use.above(logFullAt)).
			Msg("the tenant's log is filling up if raised; channels that run hold what is in it, end some or make it larger")
	}
	return nil
}

// trim purges ended channels until the log is below the mark, and returns its
// size then. Those of a lost worker go last: nobody else has their bytes.
func (k *keeper) trim(ctx context.Context, tenant string) (logUse, error) {
	in, err := k.logs.subjects(ctx, tenant)
	if err != nil {
		return logUse{}, err
	}
	type ended struct {
		subject string
		frames  uint64
		last    bool
	}
	var found []ended
	for subject, frames := range in {
		if r, err := k.owner(ctx, subject); err != nil {
			return logUse{}, err
		} else if r != nil && r.State == channel.Ended {
			found = append(found, ended{subject, frames, r.End.By == channel.ByCoordinator})
		}
	}
	slices.SortFunc(found, func(a, b ended) int {
		if a.last != b.last {
			if a.last {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.frames, a.frames)
	})
	for {
		use, err := k.logs.measure(ctx, tenant)
		if err != nil || !use.above(logTrimAt) || len(found) == 0 {
			return use, err
		}
		n := min(trimBatch, len(found))
		for _, e := range found[:n] {
			if err := k.logs.purgeSubject(ctx, tenant, e.subject); err != nil {
				return use, err
			}
		}
		found = found[n:]
	}
}

// sweep purges the subjects of channels that no record knows, once they have
// been there for a while.
func (k *keeper) sweep(ctx context.Context, tenant string, now time.Time) error {
	in, err := k.logs.subjects(ctx, tenant)
	if err != nil {
		return err
	}
	before, seen := k.strangers[tenant], map[string]time.Time{}
	gone := 0
	for subject := range in {
		r, err := k.owner(ctx, subject)
		if err != nil {
			// Without the store nobody is a stranger.
			return err
		}
		since, known := before[subject]
		switch {
		case r != nil && (r.End == nil || now.Sub(r.End.At) < purgeAfter+sweepEvery):
		case r == nil && !known:
			if len(seen) < maxStrangers {
				seen[subject] = now
			}
		case r == nil && now.Sub(since) < strangerAge:
			seen[subject] = since
		default:
			if err := k.logs.purgeSubject(ctx, tenant, subject); err != nil {
				return err
			}
			gone++
		}
	}
	k.strangers[tenant] = seen
	if gone > 0 {
		k.log.Warn().Str("tenant", tenant).Int("subjects", gone).Msg("frames of channels that are on no record were in the log; they are purged")
	}
	return nil
}

// owner is the record of the channel whose frames are on a subject, nil if there
// is none. What the table does not have is read from the store.
func (k *keeper) owner(ctx context.Context, subject string) (*channel.Record, error) {
	s, err := subjects.Parse(subject)
	if err != nil || s.Kind != subjects.KindData {
		return nil, nil
	}
	key := s.Channel.Tenant + "." + s.Channel.Lease + "." + s.Channel.Channel
	e, ok := k.store.channels.peek(key)
	if !ok {
		if e, ok, err = k.store.channels.load(ctx, key); err != nil || !ok {
			return nil, err
		}
	}
	if logChannel(e.rec) != s.Channel {
		return nil, nil // its route is another's
	}
	return &e.rec, nil
}
