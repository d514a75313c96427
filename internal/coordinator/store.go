package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/wire"
)

// The buckets of the coordinators. No tenant and no worker may read or write them.
const (
	bucketLeases   = "WEFT_LEASES"
	bucketChannels = "WEFT_CHANNELS"
	// keyIncarnation is in bucketLeases. No tenant is called _weft.
	keyIncarnation = "_weft/incarnation"
)

// storeTimeout bounds one exchange with the store. It is longer than a leader
// election seldom is; the caller's own deadline is usually shorter.
const storeTimeout = 5 * time.Second

// store is the coordinators' durable state.
type store struct {
	leases      *bucket[lease.Record]
	channels    *bucket[channel.Record]
	incarnation string
}

// openStore finds the buckets, or makes them if neither has ever been there.
// UNAVAILABLE means that a part is missing: making it again would forget what
// was granted.
func openStore(ctx context.Context, js jetstream.JetStream, replicas int, log zerolog.Logger) (*store, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*storeTimeout)
	defer cancel()
	haveLeases, err := streamExists(ctx, js, bucketLeases)
	if err != nil {
		return nil, err
	}
	haveChannels, err := streamExists(ctx, js, bucketChannels)
	if err != nil {
		return nil, err
	}
	s := &store{
		leases:   newBucket(js, bucketLeases, lease.Decode, log),
		channels: newBucket(js, bucketChannels, channel.Decode, log),
	}
	marker, err := "", error(nil)
	if haveLeases {
		if marker, err = readMarker(ctx, js); err != nil {
			return nil, err
		}
	}
	switch {
	case haveLeases && haveChannels && marker != "":
		s.incarnation = marker
		return s, s.bind(ctx, js, log)
	case !haveLeases && haveChannels, !haveChannels && marker != "":
		return nil, wire.Errorf(wire.CodeUnavailable,
			"a part of the coordinators' store is missing (%s %t, %s %t); restore it from a backup, or remove both streams KV_%s and KV_%s to start anew",
			bucketLeases, haveLeases, bucketChannels, haveChannels, bucketLeases, bucketChannels)
	}
	// Leases first, the marker last: whatever a crash leaves is either begun
	// again here or complete.
	for _, name := range [...]string{bucketLeases, bucketChannels} {
		if _, err := js.CreateStream(ctx, bucketConfig(name, replicas)); err != nil {
			return nil, unavailable(log, "create bucket "+name, err)
		}
	}
	if s.incarnation, err = writeMarker(ctx, js, log); err != nil {
		return nil, err
	}
	return s, s.bind(ctx, js, log)
}

// bind gets hold of the streams.
func (s *store) bind(ctx context.Context, js jetstream.JetStream, log zerolog.Logger) (err error) {
	for _, c := range [...]*cas{&s.leases.cas, &s.channels.cas} {
		if c.stream, err = js.Stream(ctx, "KV_"+c.bucket); err != nil {
			return unavailable(log, "open bucket "+c.bucket, err)
		}
	}
	return nil
}

func bucketConfig(name string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              "KV_" + name,
		Subjects:          []string{"$KV." + name + ".>"},
		Storage:           jetstream.FileStorage,
		Replicas:          replicas,
		Discard:           jetstream.DiscardNew,
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgSize:        maxRecord,
		MaxConsumers:      64,
		DenyDelete:        true,
		// No direct get: what decides is read from the leader.
	}
}

// maxRecord bounds one stored message: a record and its headers.
const maxRecord = lease.MaxRecord + 4<<10

func streamExists(ctx context.Context, js jetstream.JetStream, bucket string) (bool, error) {
	_, err := js.Stream(ctx, "KV_"+bucket)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return false, nil
	}
	return false, wire.Errorf(wire.CodeUnavailable, "JetStream does not answer (%v); check that the server has it enabled and is up", err)
}

func readMarker(ctx context.Context, js jetstream.JetStream) (string, error) {
	st, err := js.Stream(ctx, "KV_"+bucketLeases)
	if err != nil {
		return "", wire.Errorf(wire.CodeUnavailable, "the store does not answer: %v", err)
	}
	msg, err := st.GetLastMsgForSubject(ctx, "$KV."+bucketLeases+"."+keyIncarnation)
	switch {
	case err == nil:
		return string(msg.Data), nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "", nil
	}
	return "", wire.Errorf(wire.CodeUnavailable, "the store does not answer: %v", err)
}

// writeMarker names the new store. The first of several coordinators wins.
func writeMarker(ctx context.Context, js jetstream.JetStream, log zerolog.Logger) (string, error) {
	msg := nats.NewMsg("$KV." + bucketLeases + "." + keyIncarnation)
	msg.Data = []byte(uuid.NewString())
	_, err := js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
	if err != nil && casOutcome(err) != casFenced {
		return "", unavailable(log, "write the incarnation", err)
	}
	marker, err := readMarker(ctx, js)
	if err == nil && marker == "" {
		err = wire.Errorf(wire.CodeUnavailable, "the store lost the incarnation that it had just taken")
	}
	return marker, err
}

// unavailable logs the cause and returns what may cross the wire.
func unavailable(log zerolog.Logger, what string, err error) error {
	log.Warn().Err(err).Str("what", what).Msg("store")
	return wire.Errorf(wire.CodeUnavailable, "the coordinators' store does not answer; nothing was granted, try again")
}
