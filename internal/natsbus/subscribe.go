package natsbus

import (
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// What a subscription may hold back before it drops: the bytes bound the
// memory, the count only keeps many small messages in proportion.
const (
	maxPendingBytes = 64 << 20
	maxPendingMsgs  = 1 << 16
)

// serviceReply begins the reply subjects that a server makes for requests that
// cross from one account into another.
const serviceReply = "_R_."

// jetStreamHeaders are those that only JetStream puts on a message that it
// hands out.
var jetStreamHeaders = [...]string{"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence"}

// Msg is a message that came in. Data is the receiver's own.
type Msg struct {
	Subject, Reply string
	Data           []byte
	header         nats.Header
	c              *Conn
}

// Header is the first value of a header, or "".
func (m Msg) Header(key string) string { return m.header.Get(key) }

// HasJetStreamHeaders reports whether the message came out of a stream, or
// pretends to.
func (m Msg) HasJetStreamHeaders() bool { return fromJetStream(m.header) }

func fromJetStream(h nats.Header) bool {
	if len(h) == 0 {
		return false
	}
	for _, k := range jetStreamHeaders {
		if _, ok := h[k]; ok {
			return true
		}
	}
	return false
}

// Respond answers a request. A request without a reply subject is not
// answered, one whose reply subject is not an inbox neither, and that is
// counted: whoever sent it wanted us to write somewhere in its place. Errors:
// INVALID_ARGUMENT for such a reply subject, else as Publish.
func (m Msg) Respond(data []byte) error {
	if err := m.checkReply(); err != nil || m.Reply == "" {
		return err
	}
	return outError(m.c.nc.Publish(m.Reply, data))
}

// RespondError answers with an error: JSON in the body, code and text also in
// the headers of NATS services. Otherwise as Respond.
func (m Msg) RespondError(e *wire.Error) error {
	if err := m.checkReply(); err != nil || m.Reply == "" {
		return err
	}
	return outError(m.c.nc.PublishMsg(&nats.Msg{
		Subject: m.Reply,
		Header: nats.Header{
			headerError:     {oneLine(e.Message)},
			headerErrorCode: {oneLine(string(e.Code))},
		},
		Data: wire.Encode(e),
	}))
}

func (m Msg) checkReply() error {
	if m.Reply == "" || ReplyAllowed(m.Reply) {
		return nil
	}
	m.c.counters.badReply.Add(1)
	return wire.Errorf(wire.CodeInvalidArgument, "the reply subject is not an inbox")
}

// ReplyAllowed reports whether an answer may be sent to a reply subject: an
// inbox, or what a server makes of one when a request crosses accounts.
func ReplyAllowed(reply string) bool {
	if strings.HasPrefix(reply, serviceReply) {
		return validInbox(reply)
	}
	return strings.HasPrefix(reply, inboxPrefix) && validInbox(inboxPrefix+reply[len(inboxPrefix):])
}

// validInbox checks the characters of an inbox: no wildcard, no empty token,
// nothing that NATS would read as more than one word.
func validInbox(s string) bool {
	if len(s) > 512 || (!strings.HasPrefix(s, inboxPrefix) && !strings.HasPrefix(s, serviceReply)) ||
		strings.Contains(s, "..") || strings.HasSuffix(s, ".") {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !ok {
			return false
		}
	}
	return true
}

// Subscription is one interest in a subject or pattern.
type Subscription struct {
	sub  *nats.Subscription
	done chan struct{}
}

// Close ends the interest and returns after the last call of the handler; what
// was not handed over yet is dropped. It must not be called from the handler.
func (s *Subscription) Close() {
	// It fails only when the connection has ended it already.
	_ = s.sub.Unsubscribe()
	<-s.done
}

// Subscribe calls h for every message on a subject or pattern of
// internal/subjects, one after the other, until Close. h must not block.
// Messages sent after a Flush that follows are not missed. Errors:
// INVALID_ARGUMENT, UNAVAILABLE after Close of c.
func (c *Conn) Subscribe(subject string, h func(Msg)) (*Subscription, error) {
	return c.QueueSubscribe(subject, "", h)
}

// QueueSubscribe is Subscribe as a member of a queue group, of which one gets
// each message.
func (c *Conn) QueueSubscribe(subject, queue string, h func(Msg)) (*Subscription, error) {
	if err := checkPattern(subject); err != nil {
		return nil, err
	}
	if queue != "" {
		if err := subjects.CheckToken(queue); err != nil {
			return nil, wire.Errorf(wire.CodeInvalidArgument, "the queue group %v", err)
		}
	}
	return c.subscribe(subject, queue, func(m *nats.Msg) {
		h(Msg{Subject: m.Subject, Reply: m.Reply, Data: m.Data, header: m.Header, c: c})
	})
}

func (c *Conn) subscribe(subject, queue string, h nats.MsgHandler) (*Subscription, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closing {
		return nil, outError(nats.ErrConnectionClosed)
	}
	sub, err := c.nc.QueueSubscribe(subject, queue, h)
	if err != nil {
		return nil, outError(err)
	}
	s := &Subscription{sub: sub, done: make(chan struct{})}
	c.callbacks.Add(1)
	sub.SetClosedHandler(func(string) {
		close(s.done)
		c.callbacks.Done()
	})
	if err := sub.SetPendingLimits(maxPendingMsgs, maxPendingBytes); err != nil {
		return nil, outError(err)
	}
	return s, nil
}

// checkPattern accepts subjects of weft in which a token may be * and the last >.
func checkPattern(s string) error {
	rest, ok := strings.CutPrefix(s, subjects.Prefix+".")
	if !ok || len(s) > 512 {
		return wire.Errorf(wire.CodeInvalidArgument, "not a subject of weft")
	}
	n, last := 0, strings.Count(rest, ".")
	for t := range strings.SplitSeq(rest, ".") {
		if err := subjects.CheckToken(t); err != nil && t != "*" && (t != ">" || n != last) {
			return wire.Errorf(wire.CodeInvalidArgument, "token %d of the subject %v", n, err)
		}
		n++
	}
	return nil
}
