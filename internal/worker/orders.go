package worker

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// maxOrder bounds an order in bytes: an open's body, its order, and their base64.
const maxOrder = wire.MaxOpenBody + wire.MaxControlBody

// errNotMine is an order for another instance that is answered by silence: the
// one that it is for may be alive and answering.
var errNotMine = errors.New("worker: an order for another instance")

// receiver takes every order of the worker. It decodes and checks in the
// subscription's callback and never waits there.
func (w *Worker) receiver(ctx context.Context) func(natsbus.Msg) {
	places := make(chan struct{}, w.cfg.Limits.Orders)
	return func(m natsbus.Msg) {
		run, err := w.accept(ctx, m)
		switch {
		case errors.Is(err, errNotMine):
			return
		case err != nil:
			w.answer(m, nil, err)
			return
		}
		select {
		case places <- struct{}{}:
		default:
			w.answer(m, nil, wire.Errorf(wire.CodeTooManyRequests, "the worker carries out %d orders already; try again", cap(places)))
			return
		}
		w.tasks.Go(func() {
			defer func() { <-places }()
			reply, err := run()
			w.answer(m, reply, err)
		})
	}
}

// accept decodes and checks an order and returns what carries it out.
func (w *Worker) accept(ctx context.Context, m natsbus.Msg) (run func() (any, error), err error) {
	to, err := subjects.Parse(m.Subject)
	if err != nil {
		return nil, errNotMine
	}
	var o wire.Order
	if err := wire.DecodeStrict(m.Data, maxOrder, &o); err != nil {
		return nil, err
	}
	if err := checkSignature(w.cfg.InsecureOrders, o); err != nil {
		return nil, err
	}
	switch to.Verb {
	case subjects.WKBind:
		return prepare(w, o, func(b *wire.BindOrder) *wire.OrderHead { return &b.OrderHead },
			func(b wire.BindOrder) (any, error) { return w.bind(ctx, b) })
	case subjects.WKRelease:
		return prepare(w, o, func(r *wire.ReleaseOrder) *wire.OrderHead { return &r.OrderHead },
			func(r wire.ReleaseOrder) (any, error) { return w.release(ctx, r) })
	case subjects.WKOpen:
		return prepare(w, o, func(p *wire.OpenOrder) *wire.OrderHead { return &p.OrderHead },
			func(p wire.OpenOrder) (any, error) { return w.open(ctx, p, o.Body) })
	case subjects.WKClose:
		return prepare(w, o, func(c *wire.CloseOrder) *wire.OrderHead { return &c.OrderHead },
			func(c wire.CloseOrder) (any, error) { return w.close(c) })
	case subjects.WKAttach:
		return prepare(w, o, func(a *wire.AttachOrder) *wire.OrderHead { return &a.OrderHead },
			func(a wire.AttachOrder) (any, error) { return w.attach(ctx, a) })
	case subjects.WKProbe, subjects.WKInventory:
		return w.acceptProbe(to.Verb, o)
	}
	return nil, wire.Errorf(wire.CodeUnsupportedVersion, "this worker does not serve %q", to.Verb)
}

// prepare decodes an order of type T strictly and checks whom it is for.
func prepare[T any](w *Worker, o wire.Order, head func(*T) *wire.OrderHead, do func(T) (any, error)) (func() (any, error), error) {
	var v T
	if err := wire.DecodeStrict(o.Order, wire.MaxControlBody, &v); err != nil {
		return nil, err
	}
	if h := head(&v); h.Worker != w.cfg.ID || h.Instance != w.instance {
		// While this instance is not the one that coordinators know, the other may
		// be answering.
		if !w.news.isRegistered() {
			return nil, errNotMine
		}
		return nil, wire.Errorf(wire.CodeWorkerNotRunning, "the instance of the worker that this is for is gone; read the lease again").
			With("instance", w.instance)
	}
	return func() (any, error) { return do(v) }, nil
}

// acceptProbe is for the instance that it names, and no other says a word: what
// is asked is whether that one is there.
func (w *Worker) acceptProbe(verb string, o wire.Order) (func() (any, error), error) {
	var p wire.ProbeOrder
	if err := wire.DecodeStrict(o.Order, wire.MaxControlBody, &p); err != nil {
		return nil, err
	}
	if p.Worker != w.cfg.ID || p.Instance != w.instance {
		return nil, errNotMine
	}
	if verb == subjects.WKProbe {
		return func() (any, error) { return wire.ProbeReply{Instance: w.instance, State: w.table.state()}, nil }, nil
	}
	body := w.news.body.Load()
	if body == nil {
		return nil, errNotMine
	}
	return func() (any, error) { return *body, nil }, nil
}

// checkSignature returns UNAUTHENTICATED for an order that nobody known has
// signed. No key is known yet, so only a worker that asks for none takes any.
func checkSignature(insecure bool, _ wire.Order) error {
	if insecure {
		return nil
	}
	return wire.Errorf(wire.CodeUnauthenticated, "the order is not signed by a coordinator that the worker knows")
}

func (w *Worker) answer(m natsbus.Msg, reply any, err error) {
	switch body, raw := reply.([]byte); {
	case err != nil:
		w.log.Info().Err(err).Str("subject", m.Subject).Msg("order refused")
		err = m.RespondError(wire.AsError(err))
	case raw:
		err = m.Respond(body)
	default:
		err = m.Respond(wire.Encode(reply))
	}
	if err != nil {
		w.log.Debug().Err(err).Str("subject", m.Subject).Msg("order not answered")
	}
}
