package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Headers of an answer that is an error (the conventions of NATS services).
const (
	headerError     = "Nats-Service-Error"
	headerErrorCode = "Nats-Service-Error-Code"
)

// defaultTimeout bounds a Request or Flush whose context has no deadline.
const defaultTimeout = 10 * time.Second

// ErrNoResponders says that nobody listens on the subject of a request: the
// worker or every coordinator is gone. It comes wrapped with an UNAVAILABLE.
var ErrNoResponders = errors.New("natsbus: nobody answers there")

// errConnectionLost is the cause that ends requests at a disconnect.
var errConnectionLost = errors.New("natsbus: connection lost")

// pending is a request that waits for its answer.
type pending struct{ cancel context.CancelCauseFunc }

// Request sends data and returns the body of the answer. The errors are
// *wire.Error: what the other side answered; INVALID_ARGUMENT for a subject
// that internal/subjects did not make; PAYLOAD_TOO_LARGE; UNAVAILABLE when
// nobody listens (then also ErrNoResponders) or the connection is or goes down,
// so that the request may or may not have been carried out; DEADLINE_EXCEEDED.
// A cancelled ctx gives its own error. Without a deadline it waits 10 s.
func (c *Conn) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	if err := c.checkOut(subject, data); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	ctx, done := c.endedByDisconnect(ctx)
	defer done()
	msg, err := c.nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return nil, requestError(ctx, err)
	}
	if err := serviceError(msg); err != nil {
		return nil, err
	}
	return msg.Data, nil
}

// Publish sends data to whoever listens; that it was sent does not mean that
// it arrives. Errors as Request.
func (c *Conn) Publish(subject string, data []byte) error {
	if err := c.checkOut(subject, data); err != nil {
		return err
	}
	return outError(c.nc.Publish(subject, data))
}

// Flush returns when the server has taken everything sent before, at most
// after 10 s if ctx has no deadline. Errors: UNAVAILABLE, DEADLINE_EXCEEDED.
func (c *Conn) Flush(ctx context.Context) error {
	if !c.Up() {
		// nats.go would wait for the next connection.
		return errDown()
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return requestError(ctx, err)
	}
	return nil
}

func (c *Conn) checkOut(subject string, data []byte) error {
	if _, err := subjects.Parse(subject); err != nil {
		return wire.Errorf(wire.CodeInvalidArgument, "an id or name cannot be used in a subject: %v", err)
	}
	if limit := c.nc.MaxPayload(); limit > 0 && int64(len(data)) > limit {
		return wire.Errorf(wire.CodePayloadTooLarge, "the message is %d bytes; the NATS server takes at most %d", len(data), limit)
	}
	return nil
}

func errDown() *wire.Error {
	return wire.Errorf(wire.CodeUnavailable, "the connection to the NATS server is down; it is being restored, try again")
}

// outError types the error of a publish.
func outError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		return wire.Errorf(wire.CodePayloadTooLarge, "the message is larger than the NATS server takes")
	case errors.Is(err, nats.ErrBadSubject):
		return wire.Errorf(wire.CodeInvalidArgument, "the subject is not valid")
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return wire.Errorf(wire.CodeUnavailable, "the connection to the NATS server was closed")
	}
	return errDown()
}

func requestError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w (%w)", wire.Errorf(wire.CodeUnavailable, "nobody answers this request; the worker or every coordinator is gone, try again later"), ErrNoResponders)
	case errors.Is(context.Cause(ctx), errConnectionLost):
		return wire.Errorf(wire.CodeUnavailable, "the connection to the NATS server was lost before the answer came; the request may have been carried out, repeat it with the same id")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w (%w)", wire.Errorf(wire.CodeDeadlineExceeded, "no answer in time; the request may have been carried out, repeat it with the same id"), context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Cause(ctx)
	}
	return outError(err)
}

// serviceError returns the error that an answer carries, or nil.
func serviceError(msg *nats.Msg) error {
	if len(msg.Header) == 0 {
		return nil
	}
	code := msg.Header.Get(headerErrorCode)
	if code == "" && msg.Header.Get(headerError) == "" {
		return nil
	}
	var e wire.Error
	if err := json.Unmarshal(msg.Data, &e); err == nil && e.Code != "" {
		return &e
	}
	if code == "" {
		code = string(wire.CodeInternal)
	}
	return wire.Errorf(wire.Code(oneLine(code)), "%s", oneLine(msg.Header.Get(headerError)))
}

// oneLine makes s fit for a header and a terminal: printable, 200 bytes.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 200)]
}
