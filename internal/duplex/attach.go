package duplex

import (
	"time"

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
