package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// headerNonce marks a write, so that its writer can tell later whether it
// happened.
const headerNonce = "Weft-Write"

// errFenced means that the record is not at the revision that the writer saw.
var errFenced = errors.New("coordinator: the record has changed")

// casResult is what a failed guarded write says about the store.
type casResult int

const (
	casFenced  casResult = iota // definite: another revision is there
	casBusy                     // another guarded write is in flight; read and try again
	casUnknown                  // it may have happened
)

// casOutcome tells two server codes apart that nats.go maps to one sentinel.
func casOutcome(err error) casResult {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch api.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence: // 10071
			return casFenced
		case 10164:
			return casBusy
		}
	}
	return casUnknown
}

// cas is the guarded access to one bucket.
type cas struct {
	js     jetstream.JetStream
	stream jetstream.Stream // set once by openStore
	bucket string
	log    zerolog.Logger
}

func (c *cas) subject(key string) string { return "$KV." + c.bucket + "." + key }

// put writes value where the record has revision rev (0: is not there) and
// returns the new revision, errFenced, or UNAVAILABLE.
func (c *cas) put(ctx context.Context, key string, value any, rev uint64) (uint64, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	msg := nats.NewMsg(c.subject(key))
	msg.Data = data
	nonce := uuid.NewString()
	msg.Header.Set(headerNonce, nonce)
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		ack, err := c.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(rev))
		if err == nil {
			return ack.Sequence, nil
		}
		switch casOutcome(err) {
		case casFenced:
			// Also the answer to a second copy of a write of ours that happened.
			return c.mine(ctx, key, nonce, errFenced)
		case casUnknown:
			return c.mine(ctx, key, nonce, unavailable(c.log, "write "+c.bucket, err))
		case casBusy:
			if !pause(ctx, wait) {
				return 0, unavailable(c.log, "write "+c.bucket, err)
			}
		}
	}
}

// mine returns the revision of the write with this nonce, or otherwise.
func (c *cas) mine(ctx context.Context, key, nonce string, otherwise error) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout/2)
	defer cancel()
	msg, err := c.raw(ctx, key)
	if err == nil && msg.Header.Get(headerNonce) == nonce {
		return msg.Sequence, nil
	}
	return 0, otherwise
}

// raw reads a record from the bucket's leader.
func (c *cas) raw(ctx context.Context, key string) (*jetstream.RawStreamMsg, error) {
	return c.stream.GetLastMsgForSubject(ctx, c.subject(key))
}

// pause waits d or until ctx is done, and reports whether d passed.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
