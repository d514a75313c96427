package coordinator

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// serviceName is what nats micro ls shows, queueGroup what coordinators share.
const (
	serviceName = "weft-coordinator"
	queueGroup  = "weft-coordinators"
)

// maxReply bounds a reply in bytes; lists are cut into pages below it.
const maxReply = 512 << 10

// endpoint is one verb: its subject, the largest body, how long its handler
// may take, and the handler. The body is not decoded yet.
type endpoint struct {
	name    string
	subject string
	timeout time.Duration
	crew    *crew
	handle  func(ctx context.Context, to subjects.Subject, body []byte) (any, error)
}

// service answers requests. It keeps no state of its own between two runs of
// the micro service.
type service struct {
	nc        *nats.Conn
	name      string
	endpoints []endpoint
	tenants   map[string]bool
	log       zerolog.Logger
	badReply  atomic.Uint64
	add       func(*nats.Conn, micro.Config) (micro.Service, error) // micro.AddService
}

// run keeps a micro service up until ctx is done: one that has stopped, for
// whatever reason, is started again. up is called each time the subscriptions are
// confirmed.
func (s *service) run(ctx context.Context, up func()) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		began := time.Now()
		err := s.once(ctx, up)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			wait = 10 * time.Millisecond
		}
		s.log.Warn().Err(err).Msg("the micro service stopped by itself; it is started again")
		if !pause(ctx, wait) {
			return
		}
	}
}

func (s *service) once(ctx context.Context, up func()) error {
	done := make(chan struct{})
	svc, err := s.add(s.nc, micro.Config{
		Name: serviceName, Version: Version, QueueGroup: queueGroup,
		Description: "registry, leases and the gate of weft",
		Metadata:    map[string]string{"coordinator": s.name},
		DoneHandler: func(micro.Service) { close(done) },
		ErrorHandler: func(_ micro.Service, e *micro.NATSError) {
			s.log.Warn().Str("subject", e.Subject).Str("error", e.Description).Msg("micro service")
		},
	})
	if err != nil {
		return err
	}
	stop := func() {
		if err := svc.Stop(); err != nil {
			s.log.Debug().Err(err).Msg("stop the micro service")
			return
		}
		<-done
	}
	for _, e := range s.endpoints {
		h := micro.HandlerFunc(func(r micro.Request) { s.take(e, r) })
		if err := svc.AddEndpoint(e.name, h, micro.WithEndpointSubject(e.subject)); err != nil {
			stop()
			return err
		}
	}
	if err := s.nc.FlushTimeout(storeTimeout); err != nil {
		stop()
		return err
	}
	up()
	select {
	case <-ctx.Done():
		stop()
	case <-done:
	}
	return nil
}

// take is called in the subscription's callback: it never waits.
func (s *service) take(e endpoint, r micro.Request) {
	subject, reply, body := r.Subject(), r.Reply(), r.Data()
	if reply == "" || !natsbus.ReplyAllowed(reply) {
		// Answering would publish where the caller cannot (S-011).
		s.badReply.Add(1)
		s.log.Debug().Str("verb", e.name).Msg("request dropped: its reply subject is no inbox")
		return
	}
	var refused error
	switch e.crew.try(func(ctx context.Context) { s.answer(reply, e.name, s.serve(ctx, e, subject, body)) }) {
	case crewTaken:
		return
	case crewFull:
		refused = wire.Errorf(wire.CodeTooManyRequests, "this coordinator has all its hands full; ask again in a moment").
			With("retryAfterMs", "200")
	case crewClosed:
		refused = wire.Errorf(wire.CodeUnavailable, "this coordinator is stopping; ask again")
	}
	s.answer(reply, e.name, result{err: refused})
}

// result is what a handler made of a request.
type result struct {
	reply any
	err   error
}

func (s *service) serve(ctx context.Context, e endpoint, subject string, body []byte) result {
	to, err := subjects.Parse(subject)
	if err != nil {
		return result{err: wire.Errorf(wire.CodeInvalidArgument, "the request's subject is none of weft's: ids are 1 to 63 of a-z, 0-9 and -")}
	}
	if (to.Kind == subjects.KindAPI || to.Kind == subjects.KindReplay) && !s.tenants[to.Tenant] {
		return result{err: wire.Errorf(wire.CodePermissionDenied, "this fabric does not serve the tenant; an operator lists tenants in the coordinators' configuration")}
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	reply, err := e.handle(ctx, to, body)
	return result{reply, err}
}

// answer sends the reply: one message, for a replay one per frame and the one
// that ends it. Nothing of the request's headers goes out again.
func (s *service) answer(reply, verb string, r result) {
	msg := nats.NewMsg(reply)
	if back, ok := r.reply.(replayed); ok && r.err == nil {
		if err := s.replay(reply, back); err != nil {
			s.log.Debug().Err(err).Str("verb", verb).Msg("reply not sent")
		}
		return
	}
	if r.err == nil {
		data, err := json.Marshal(r.reply)
		switch {
		case err != nil:
			r.err = err
		case len(data) > maxReply:
			r.err = wire.Errorf(wire.CodePayloadTooLarge, "the answer is larger than %d bytes", maxReply)
		default:
			msg.Data = data
		}
	}
	if r.err != nil {
		e := wire.AsError(r.err)
		if wire.CodeOf(r.err) == "" {
			s.log.Error().Err(r.err).Str("verb", verb).Msg("request failed")
		} else {
			s.log.Debug().Str("verb", verb).Str("code", string(e.Code)).Str("message", e.Message).Msg("request refused")
		}
		msg.Header.Set(micro.ErrorHeader, headerText(e.Error()))
		msg.Header.Set(micro.ErrorCodeHeader, headerText(string(e.Code)))
		msg.Data = wire.Encode(e)
	}
	if err := s.nc.PublishMsg(msg); err != nil {
		s.log.Debug().Err(err).Str("verb", verb).Msg("reply not sent")
	}
}

// headerText keeps what a peer wrote from ending a header line.
func headerText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
