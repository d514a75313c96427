package duplex

import (
	"context"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Numbers of control requests.
const (
	requestMin = 200 * time.Millisecond // an unanswered request is repeated
	requestMax = 5 * time.Second
	// answersKept is how many answers an end remembers for repeats. A requester
	// has at most that many unanswered.
	answersKept = 64
)

// pendingRequest is a request that has not been answered.
type pendingRequest struct {
	req    wire.Request
	answer chan wire.Answer // capacity 1
	at     time.Time
	gap    time.Duration
}

// requests is both halves of the numbered control requests of one attach: those
// sent and not answered, and the answers given.
type requests struct {
	attach  uint32
	lastN   uint64
	pending []*pendingRequest
	answers []wire.Answer // ring of the newest answersKept
	obeyed  uint64        // highest number that was obeyed
}

func (q *requests) next() (t time.Time) {
	for _, p := range q.pending {
		t = earliest(t, p.at)
	}
	return t
}

// tick repeats what is overdue.
func (q *requests) tick(now time.Time, send func(wire.Request)) {
	for _, p := range q.pending {
		if !now.Before(p.at) {
			send(p.req)
			p.gap = min(2*p.gap, requestMax)
			p.at = now.Add(p.gap)
		}
	}
}

func (q *requests) answered(a wire.Answer) {
	for i, p := range q.pending {
		if p.req.N == a.N {
			p.answer <- a
			q.pending = append(q.pending[:i], q.pending[i+1:]...)
			return
		}
	}
}

func (q *requests) recall(n uint64) (wire.Answer, bool) {
	for _, a := range q.answers {
		if a.N == n {
			return a, true
		}
	}
	return wire.Answer{}, false
}

// forgotten reports whether n is too old to be new: its answer is no longer kept,
// and no honest requester still waits for it.
func (q *requests) forgotten(n uint64) bool { return n == 0 || n+answersKept <= q.obeyed }

func (q *requests) remember(a wire.Answer) {
	q.obeyed = max(q.obeyed, a.N)
	if len(q.answers) == answersKept {
		q.answers = append(q.answers[:0], q.answers[1:]...)
	}
	q.answers = append(q.answers, a)
}

// sendRequest puts a REQUEST in the outbox. Called with mu held.
func (e *End) sendRequest(r wire.Request) {
	b, err := wire.AppendRequest(nil, wire.ControlRequest, e.cfg.Channel, e.reqs.attach, wire.Encode(r), e.keyOut)
	if err == nil {
		e.outbox = append(e.outbox, outMsg{payload: b})
	}
}

// Request sends a control request, repeats it until it is answered, and returns
// the answer's error. It never waits behind data. More than 64 unanswered at
// once are TOO_MANY_REQUESTS.
func (e *End) Request(ctx context.Context, r wire.Request) error {
	e.mu.Lock()
	now := time.Now()
	switch {
	case e.exited != nil, e.failure != nil, !e.started:
		e.unlock(now)
		return wire.Errorf(wire.CodeChannelEnded, "the channel is not open")
	case len(e.reqs.pending) >= answersKept:
		e.unlock(now)
		return wire.Errorf(wire.CodeTooManyRequests, "%d control requests are unanswered; wait for one", answersKept)
	}
	e.reqs.lastN++
	r.N = e.reqs.lastN
	p := &pendingRequest{req: r, answer: make(chan wire.Answer, 1), at: now.Add(requestMin), gap: requestMin}
	e.reqs.pending = append(e.reqs.pending, p)
	e.sendRequest(r)
	e.unlock(now)
	select {
	case a := <-p.answer:
		if a.Error != nil {
			return a.Error
		}
		return nil
	case <-e.done:
		return wire.Errorf(wire.CodeChannelEnded, "the channel ended before the request was answered")
	case <-ctx.Done():
		e.mu.Lock()
		e.reqs.answered(wire.Answer{N: r.N})
		e.mu.Unlock()
		return context.Cause(ctx)
	}
}
