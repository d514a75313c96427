package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// What coordinators ask of a log and nats.go has no call for: a read from the
// leader although direct get is on, a batch, one page of subjects.

// stored is one message of a log, without its headers: whoever may publish can
// write anything there.
type stored struct {
	Seq  uint64 `json:"seq"`
	Data []byte `json:"data"`
}

// apiError is how JetStream says no.
type apiError struct {
	Code jetstream.ErrorCode `json:"err_code"`
	Text string              `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Text, e.Code) }

// Codes of a read that finds nothing.
const (
	errNoMessage jetstream.ErrorCode = 10037
	errNoStream  jetstream.ErrorCode = 10059
)

// errNoLog means that the log stream is not there, or has no leader.
var errNoLog = errors.New("coordinator: the log does not answer")

// api sends a request about a log stream and reads the answer.
func (l *logs) api(ctx context.Context, verb, tenant string, req, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	msg, err := l.js.Conn().RequestWithContext(ctx, jetstream.DefaultAPIPrefix+verb+"."+subjects.LogStream(tenant, 0), wire.Encode(req))
	if errors.Is(err, nats.ErrNoResponders) {
		return errNoLog
	}
	if err != nil {
		return err
	}
	var refused struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &refused); err != nil {
		return err
	}
	if refused.Error != nil {
		return refused.Error
	}
	return json.Unmarshal(msg.Data, reply)
}

func apiCode(err error) jetstream.ErrorCode {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.Code
	}
	return 0
}

// last reads the newest message on a subject from the log's leader; nil if there
// is none, or no log.
func (l *logs) last(ctx context.Context, tenant, subject string) (*stored, error) {
	var reply struct {
		Message stored `json:"message"`
	}
	err := l.api(ctx, "STREAM.MSG.GET", tenant, map[string]string{"last_by_subj": subject}, &reply)
	if code := apiCode(err); code == errNoMessage || code == errNoStream {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &reply.Message, nil
}

// directGet is a batched direct get of one subject.
type directGet struct {
	Seq      uint64 `json:"seq,omitempty"`
	NextFor  string `json:"next_by_subj"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

// batch reads the messages on a subject from a stream sequence on, at most a
// ring's worth and maxBytes of data, but one at least if there is one. Any replica
// may answer, so it may be stale. errNoLog: there is nobody to ask.
func (l *logs) batch(ctx context.Context, tenant, subject string, from uint64, maxBytes int) ([]stored, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	nc := l.js.Conn()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	req := directGet{Seq: from, NextFor: subject, Batch: logRing, MaxBytes: maxBytes}
	if err := nc.PublishRequest(jetstream.DefaultAPIPrefix+"DIRECT.GET."+subjects.LogStream(tenant, 0), inbox, wire.Encode(req)); err != nil {
		return nil, err
	}
	var out []stored
	for size := 0; ; {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, errNoLog
		}
		if err != nil {
			return nil, err
		}
		// A stored message has its publisher's headers first and the server's last;
		// an answer about the batch itself has no subject at all.
		if lastOf(m.Header[jetstream.SubjectHeader]) != subject {
			switch m.Header.Get("Status") {
			case "204", "404":
				return out, nil
			case "503":
				return nil, errNoLog
			}
			return nil, fmt.Errorf("coordinator: direct get: %v", m.Header)
		}
		seq, err := strconv.ParseUint(lastOf(m.Header[jetstream.SequenceHeader]), 10, 64)
		if err != nil {
			return nil, err
		}
		if size += len(m.Data); size > maxBytes && len(out) > 0 {
			return out, nil
		}
		out = append(out, stored{Seq: seq, Data: m.Data})
	}
}

func lastOf(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// subjects is a page of the subjects in a log and how many messages each has:
// the server gives 100,000 at most.
func (l *logs) subjects(ctx context.Context, tenant string) (map[string]uint64, error) {
	var reply struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	err := l.api(ctx, "STREAM.INFO", tenant, map[string]string{"subjects_filter": subjects.Log(tenant)}, &reply)
	if apiCode(err) == errNoStream {
		return nil, nil
	}
	return reply.State.Subjects, err
}

// purgeSubject removes what is on one subject; without a log there is nothing.
func (l *logs) purgeSubject(ctx context.Context, tenant, subject string) error {
	var reply struct{}
	err := l.api(ctx, "STREAM.PURGE", tenant, map[string]string{"filter": subject}, &reply)
	if apiCode(err) == errNoStream {
		return nil
	}
	return err
}

// measure looks at a log's size.
func (l *logs) measure(ctx context.Context, tenant string) (logUse, error) {
	var reply struct {
		Config struct {
			MaxBytes int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			Bytes int64 `json:"bytes"`
		} `json:"state"`
	}
	err := l.api(ctx, "STREAM.INFO", tenant, struct{}{}, &reply)
	use := logUse{reply.State.Bytes, reply.Config.MaxBytes}
	if err == nil {
		l.note(tenant, use)
	}
	return use, err
}
