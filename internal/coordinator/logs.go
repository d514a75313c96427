package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Settings of a log stream (docs/PROTOCOL.md, "Log").
const (
	logRing       = 128 // frames kept per direction of a channel
	logMaxMessage = wire.MaxPayload + 512
	logMaxAge     = 24 * time.Hour
	logCheck      = 30 * time.Second
)

// logs keeps each tenant's log stream in place.
type logs struct {
	js       jetstream.JetStream
	tenants  []string
	replicas int
	sizes    []int64 // acceptable, the wanted one first
	log      zerolog.Logger

	mu  sync.Mutex
	use map[string]logUse // by tenant, as last seen
}

func (l *logs) config(tenant string) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        subjects.LogStream(tenant, 0),
		Subjects:    []string{subjects.Log(tenant)},
		Storage:     jetstream.FileStorage,
		Replicas:    l.replicas,
		PersistMode: jetstream.AsyncPersistMode,
		// Per subject the oldest frame goes, which makes the ring; in bytes the
		// newest is refused, which makes the sender wait.
		Discard:           jetstream.DiscardNew,
		MaxMsgsPerSubject: logRing,
		MaxMsgs:           -1,
		MaxMsgSize:        logMaxMessage,
		MaxBytes:          l.sizes[0],
		MaxAge:            logMaxAge,
		MaxConsumers:      16, // none are needed; the server takes -1 for unset
		DenyDelete:        true,
		AllowDirect:       true,
		RePublish:         &jetstream.RePublish{Source: subjects.Log(tenant), Destination: subjects.LogRepublish(tenant)},
	}
	if l.replicas > 1 {
		c.PersistMode = jetstream.DefaultPersistMode // the only one on a replicated stream
	}
	return c
}

// ensure makes a log that is missing (it only holds what senders still have)
// and updates one that differs, or says why it cannot.
func (l *logs) ensure(ctx context.Context, tenant string) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	want := l.config(tenant)
	st, err := l.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return l.make(ctx, tenant, want)
	}
	if err != nil {
		return err
	}
	have := st.CachedInfo().Config
	if slices.Contains(l.sizes, have.MaxBytes) {
		want.MaxBytes = have.MaxBytes
	}
	l.note(tenant, logUse{int64(st.CachedInfo().State.Bytes), have.MaxBytes})
	if logSame(have, want) {
		return nil
	}
	if _, err = l.js.UpdateStream(ctx, want); err != nil {
		return wire.Errorf(wire.CodeUnavailable,
			"the log stream of tenant %s is not as it must be and cannot be changed (%v); stop its channels and remove stream %s, it will be made again", tenant, err, want.Name)
	}
	l.log.Warn().Str("tenant", tenant).Msg("the log stream differed and was changed back")
	return nil
}

// make creates a log of the first size for which the server has room.
func (l *logs) make(ctx context.Context, tenant string, want jetstream.StreamConfig) error {
	for _, want.MaxBytes = range l.sizes {
		_, err := l.js.CreateStream(ctx, want)
		if err == nil {
			l.note(tenant, logUse{0, want.MaxBytes})
			l.log.Info().Str("tenant", tenant).Int64("bytes", want.MaxBytes).Msg("the log stream was not there; it is made")
			return nil
		}
		api, ok := errors.AsType[*jetstream.APIError](err)
		if !ok || api.ErrorCode != errNoStorage && api.ErrorCode != errNoResources {
			return err
		}
	}
	return wire.Errorf(wire.CodeQuotaExceeded,
		"the NATS server has no room for a log of %d bytes for tenant %s; give it more file store or set a smaller log", want.MaxBytes, tenant)
}

// Codes of the server for a stream that does not fit.
const (
	errNoResources jetstream.ErrorCode = 10023
	errNoStorage   jetstream.ErrorCode = 10047
)

// logSame compares what weft sets; the server fills in the rest.
func logSame(have, want jetstream.StreamConfig) bool {
	sameTarget := have.RePublish != nil && *have.RePublish == *want.RePublish
	return sameTarget && len(have.Subjects) == 1 && have.Subjects[0] == want.Subjects[0] &&
		have.Retention == want.Retention && have.Storage == want.Storage && have.Replicas == want.Replicas && have.PersistMode == want.PersistMode &&
		have.Discard == want.Discard && !have.DiscardNewPerSubject && have.MaxMsgsPerSubject == want.MaxMsgsPerSubject &&
		have.MaxMsgs <= 0 && have.MaxMsgSize == want.MaxMsgSize && have.MaxBytes == want.MaxBytes && have.MaxAge == want.MaxAge &&
		have.MaxConsumers == want.MaxConsumers && have.DenyDelete && !have.DenyPurge && have.AllowDirect && !have.AllowRollup &&
		!have.NoAck && !have.Sealed && !have.AllowMsgTTL && !have.AllowMsgCounter && !have.AllowAtomicPublish && !have.AllowMsgSchedules && !have.AllowBatchPublish
}

// run checks every log every 30 s and each time again is sent to.
func (l *logs) run(ctx context.Context, again <-chan struct{}) {
	tick := time.NewTicker(logCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-again:
		case <-ctx.Done():
			return
		}
		for _, t := range l.tenants {
			for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
				err := l.ensure(ctx, t)
				if err == nil {
					break
				}
				l.log.Error().Err(err).Str("tenant", t).Msg("log stream")
				// A typed error will not go away within moments.
				if wire.CodeOf(err) != "" || !pause(ctx, wait) {
					break
				}
			}
		}
	}
}

// exit returns the EXIT that ends the down direction of a channel's log, or nil
// if the last frame there is none that the channel's secret vouches for.
func (l *logs) exit(ctx context.Context, ch subjects.Channel, secret []byte) (*wire.Exit, error) {
	msg, err := l.last(ctx, ch.Tenant, ch.Data(subjects.Down))
	if err != nil || msg == nil {
		return nil, err
	}
	f, err := wire.NewFrameKey(wire.KeyDown(secret), subjects.Down).Open(msg.Data)
	if err != nil || f.Type != wire.FrameExit {
		return nil, nil
	}
	var e wire.Exit
	if err := wire.DecodeReply(f.Payload, &e); err != nil || e.Outcome.Kind == "" {
		return nil, nil
	}
	return &e, nil
}

// purge removes both directions of an ended channel from the log.
func (l *logs) purge(ctx context.Context, ch subjects.Channel) error {
	for _, d := range [...]subjects.Dir{subjects.Up, subjects.Down} {
		if err := l.purgeSubject(ctx, ch.Tenant, ch.Data(d)); err != nil {
			return err
		}
	}
	return nil
}
