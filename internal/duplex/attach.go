package duplex

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/wire"
)

// maxGone bounds the ranges of acknowledged frames behind an unacknowledged one:
// at most one before each frame that is kept, and one after the last.
const maxGone = FrameWindow + reservedFrames + 1

// Attach makes attach number n the holder of a worker's end: whatever an older
// one sends from now on is dropped, and its client is told FENCED. keyUp is
// K_up(n). from is what the new holder has already; it acknowledges up to there.
// The credit counts from what was acknowledged. The reply says where both
// directions go on; its Channel, keys and the like are for the caller to fill.
//
// Errors: CONFLICT if n is not newer than the current attach; INVALID_ARGUMENT
// if from was never sent; CHANNEL_ENDED.
func (e *End) Attach(n uint32, keyUp wire.Key, from *wire.Offsets, credit wire.DownCredit) (wire.UpPosition, wire.DownPosition, error) {
	e.mu.Lock()
	now := time.Now()
	defer func() { e.unlock(now) }()
	return e.attach(now, n, keyUp, from, credit)
}

func (e *End) attach(now time.Time, n uint32, keyUp wire.Key, from *wire.Offsets, credit wire.DownCredit) (up wire.UpPosition, down wire.DownPosition, err error) {
	switch {
	case e.closed, e.failure != nil, !e.started:
		return up, down, wire.Errorf(wire.CodeChannelEnded, "the channel is not open here")
	case n <= e.reqs.attach:
		return up, down, wire.Errorf(wire.CodeConflict, "attach %d is not newer than %d, which holds the channel", n, e.reqs.attach)
	}
	if from != nil && !e.send.acknowledge(now, from) {
		return up, down, wire.Errorf(wire.CodeInvalidArgument, "from is beyond what the command has written")
	}
	e.outbox = append(e.outbox, outMsg{payload: wire.AppendFenced(nil, e.cfg.Channel, e.reqs.attach, e.keyOut)})
	e.reqs = requests{attach: n}
	e.keyIn = keyUp
	e.frameIn = wire.NewFrameKey(keyUp, e.in)
	e.heard = now
	e.recv.handOver(n)
	down = e.send.handOver(now, credit)
	for st := range e.cond {
		e.cond[st].Broadcast()
	}
	return e.upPosition(), down, nil
}

// handover is the last attach request that was obeyed, for its repeats.
type handover struct {
	attach uint32 // that asked
	n      uint64
	answer []byte
	report uint32 // attach that Config.Attached has not been told
}

// fence answers a message of an older attach: its attach request with the
// answer that it got, or an error; anything else that is its own with FENCED.
func (e *End) fence(buf []byte, attach uint32) {
	key := e.cfg.NextKey(attach)
	if _, err := wire.DecodeState(buf, key); err == nil {
		e.outbox = append(e.outbox, outMsg{payload: wire.AppendFenced(nil, e.cfg.Channel, attach, e.keyOut)})
		return
	}
	body, err := wire.DecodeRequest(buf, key)
	var r wire.Request
	if err != nil || wire.DecodeStrict(body, wire.MaxRequest, &r) != nil {
		return
	}
	if h := &e.handed; r.Verb == wire.VerbAttach && h.attach == attach && h.n == r.N {
		e.outbox = append(e.outbox, outMsg{payload: h.answer})
		return
	}
	answer := wire.Answer{N: r.N, Error: wire.Errorf(wire.CodeFenced, "another client has attached to the channel and holds it now")}
	if b, err := wire.AppendRequest(nil, wire.ControlAnswer, e.cfg.Channel, attach, wire.Encode(answer), e.keyOut); err == nil {
		e.outbox = append(e.outbox, outMsg{payload: b})
	}
}

// attachRequest obeys an attach by the holder of the newest attach's key,
// without a coordinator.
func (e *End) attachRequest(now time.Time, r wire.Request) {
	h := handover{attach: e.reqs.attach, n: r.N}
	asker := e.keyIn
	next := h.attach + 1
	key := e.cfg.NextKey(next)
	credit := wire.DownCredit{Stdout: DefaultWindow, Stderr: DefaultWindow, FrameLimit: FrameWindow}
	if r.Credit != nil {
		credit = *r.Credit
	}
	answer := wire.Answer{N: r.N}
	up, down, err := e.attach(now, next, key, r.Offsets, credit)
	if err != nil {
		answer.Error = wire.AsError(err)
	} else {
		masked := asker.Mask(key, next, r.N)
		answer.Attach = &wire.AttachReply{
			Channel: e.cfg.Channel, Attach: next, Epoch: e.cfg.Epoch, KeyUp: masked[:], KeyDown: e.keyOut[:], Up: up, Down: down,
		}
	}
	b, err := wire.AppendRequest(nil, wire.ControlAnswer, e.cfg.Channel, h.attach, wire.Encode(answer), e.keyOut)
	if err != nil {
		return
	}
	e.outbox = append(e.outbox, outMsg{payload: b})
	if answer.Attach != nil {
		h.answer, h.report = b, next
		e.handed = h
	}
}

// Resumer asks a worker for the next attach with the key of the newest one, which
// an earlier process of the same holder has saved. It is a Handler for a port of
// its own; the end that goes on from the answer has another.
type Resumer struct {
	channel uuid.UUID
	attach  uint32
	up      wire.Key
	down    wire.Key
	link    Link
	answer  chan *wire.Answer // capacity 1
}

var _ Handler = (*Resumer)(nil)

// NewResumer makes a resumer for the holder of attach.
func NewResumer(link Link, channel uuid.UUID, attach uint32, up, down wire.Key) *Resumer {
	return &Resumer{channel: channel, attach: attach, up: up, down: down, link: link, answer: make(chan *wire.Answer, 1)}
}

// Run asks until there is an answer or ctx ends. The reply's KeyUp is unmasked.
// Errors: what the worker answers; FENCED when a newer attach holds the channel.
func (r *Resumer) Run(ctx context.Context, from *wire.Offsets, credit wire.DownCredit) (*wire.AttachReply, error) {
	n := uint64(time.Now().UnixNano())&(1<<53-1) | 1<<52 // no number that the earlier process used
	body := wire.Encode(wire.Request{N: n, Verb: wire.VerbAttach, Credit: &credit, Offsets: from})
	msg, err := wire.AppendRequest(nil, wire.ControlRequest, r.channel, r.attach, body, r.up)
	if err != nil {
		return nil, err
	}
	for gap := requestMin; ; gap = min(2*gap, requestMax) {
		_ = r.link.Control(msg) // what does not leave is repeated
		t := time.NewTimer(gap)
		select {
		case a := <-r.answer:
			t.Stop()
			if a.Error != nil {
				return nil, a.Error
			}
			if a.N != n || a.Attach == nil || len(a.Attach.KeyUp) != wire.KeySize {
				return nil, wire.Errorf(wire.CodeInternal, "the worker's answer to the attach makes no sense")
			}
			key := r.up.Mask(wire.Key(a.Attach.KeyUp), a.Attach.Attach, n)
			a.Attach.KeyUp = key[:]
			return a.Attach, nil
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		case <-t.C:
		}
	}
}

// ControlMessage implements Handler.
func (r *Resumer) ControlMessage(buf []byte) {
	if _, attach, err := wire.PeekChannel(buf); err != nil || attach != r.attach {
		return
	}
	a := &wire.Answer{}
	body, err := wire.DecodeRequest(buf, r.down)
	if err != nil || wire.ControlKind(buf[0]) != wire.ControlAnswer || wire.DecodeReply(body, a) != nil {
		return
	}
	select {
	case r.answer <- a:
	default:
	}
}

// Frame implements Handler: frames are for the end that goes on.
func (r *Resumer) Frame([]byte) {}

// Stored implements Handler.
func (r *Resumer) Stored(uint64, uint64) {}

// Refused implements Handler.
func (r *Resumer) Refused(uint64, RefuseReason) {}

func (e *End) upPosition() wire.UpPosition {
	s := &e.recv.streams[wire.Stdin]
	p := wire.UpPosition{
		NextSeq: e.recv.nextSeq, NextOffset: s.received, Written: s.taken,
		Limit: s.limit, FrameLimit: e.recv.frameLimit(), Ended: s.eof, Closed: e.stdinEnd,
	}
	if e.stdinEnd {
		p.Written = e.closedAt
	}
	return p
}

// AttachNumber is the attach that holds the channel.
func (e *End) AttachNumber() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reqs.attach
}

// acknowledge takes a new holder's word for what it has. It reports false for
// bytes that were never sent.
func (s *sender) acknowledge(now time.Time, from *wire.Offsets) bool {
	for st, off := range map[wire.Stream]uint64{wire.Stdout: from.Stdout, wire.Stderr: from.Stderr} {
		if off > s.streams[st].offset {
			return false
		}
	}
	for st, off := range map[wire.Stream]uint64{wire.Stdout: from.Stdout, wire.Stderr: from.Stderr} {
		s.streams[st].acked = max(s.streams[st].acked, off)
	}
	s.dropAcked(now, 0)
	return true
}

// handOver starts the credit afresh for a new holder and returns where the
// direction stands. The frames stay what they are; the holder asks for those it needs.
func (s *sender) handOver(now time.Time, credit wire.DownCredit) wire.DownPosition {
	s.counter = 0
	p := wire.DownPosition{LastSeq: s.lastPublished()}
	p.AckedSeq = p.LastSeq
	next := uint64(0) // first sequence after the last frame seen that is kept
	for _, f := range s.frames {
		if next == 0 {
			p.AckedSeq = min(p.AckedSeq, f.seq-1)
		} else if f.seq > next {
			p.Gone = append(p.Gone, [2]uint64{next, f.seq - 1})
		}
		next = f.seq + 1
	}
	if next != 0 && next <= p.LastSeq {
		p.Gone = append(p.Gone, [2]uint64{next, p.LastSeq})
	}
	s.frameLimit = max(s.lastSeq, s.lastSeq-uint64(len(s.frames))+credit.FrameLimit)
	position := func(st wire.Stream, window uint64) wire.StreamPosition {
		o := &s.streams[st]
		o.limit = max(o.offset, o.acked+window)
		kept := false
		for _, f := range s.frames {
			kept = kept || f.typ == wire.FrameEOF && f.stream == st
		}
		return wire.StreamPosition{Acked: o.acked, Sent: o.offset, Ended: o.ended && !kept}
	}
	p.Stdout = position(wire.Stdout, credit.Stdout)
	p.Stderr = position(wire.Stderr, credit.Stderr)
	s.probeAt = time.Time{}
	s.flush(now)
	return p
}

// handOver drops what an older attach sent and was not taken in order.
func (r *receiver) handOver(attach uint32) {
	r.attach = attach
	r.early = nil
	r.told = r.nextSeq - 1
	r.holeAt = time.Time{}
}

// Resume is where a new client's end goes on: the reply to an attach.
type Resume struct {
	Up   wire.UpPosition
	Down wire.DownPosition
}

// resume sets a fresh client's end to where the channel stands.
func (e *End) resume(now time.Time, r *Resume) *wire.Error {
	if len(r.Down.Gone) > maxGone || r.Up.NextSeq == 0 {
		return wire.Errorf(wire.CodeInternal, "the worker's answer to the attach makes no sense")
	}
	e.send.resume(&r.Up)
	if r.Up.Closed {
		e.stdinEnd, e.closedAt = true, r.Up.Written
		e.send.streams[wire.Stdin].dropped = true
	}
	e.written = r.Up.Written
	e.recv.resume(now, &r.Down)
	return nil
}

func (s *sender) resume(p *wire.UpPosition) {
	s.lastSeq = p.NextSeq - 1
	o := &s.streams[wire.Stdin]
	o.offset, o.acked = p.NextOffset, min(p.Written, p.NextOffset)
	if p.Ended {
		o.ending, o.ended = true, true
	}
}

func (r *receiver) resume(now time.Time, p *wire.DownPosition) {
	r.nextSeq = p.AckedSeq + 1
	r.gone = p.Gone
	for st, at := range map[wire.Stream]wire.StreamPosition{wire.Stdout: p.Stdout, wire.Stderr: p.Stderr} {
		s := &r.streams[st]
		s.received, s.taken, s.resumedAt = at.Acked, at.Acked, at.Acked
		s.limit = max(at.Sent, at.Acked+s.window)
		s.eof = at.Ended
	}
	r.skipGone()
	r.told = p.LastSeq
	r.armHole(now)
	if !r.holeAt.IsZero() {
		r.holeAt = now // nothing is on its way: ask at once
	}
}

// skipGone steps over frames that were acknowledged by an earlier attach.
func (r *receiver) skipGone() {
	for len(r.gone) > 0 && r.gone[0][0] <= r.nextSeq {
		r.nextSeq = max(r.nextSeq, r.gone[0][1]+1)
		r.gone = r.gone[1:]
	}
}

// goneAhead counts the frames of an earlier attach that will be stepped over.
func (r *receiver) goneAhead() (n uint64) {
	for _, g := range r.gone {
		n += g[1] - g[0] + 1
	}
	return n
}
