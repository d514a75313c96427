package duplex

import (
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Numbers of the receiver (docs/PROTOCOL.md, "Receiver").
const (
	creditDelay = 20 * time.Millisecond // an acknowledgement waits at most so long
	// A hole before a frame that came is a loss, since links keep order: it is asked
	// for soon. That the sender has sent more than came may only mean that it is on
	// its way.
	holeWait = 50 * time.Millisecond
	tailWait = 300 * time.Millisecond
	holeMax  = 5 * time.Second
	holeNext = 10 * time.Millisecond // the rest of a repair is asked for so long after its last frame
	// A window follows the consumer's pace: it covers what was taken in windowSpan.
	windowSpan = 100 * time.Millisecond
	// reservedFrames may pass the frame limit: EOF, EXIT, RESET need no credit.
	reservedFrames = 8
)

// verdict is what became of a frame.
type verdict uint8

const (
	frameTaken     verdict = iota
	frameEarly             // held until what is missing comes
	frameDuplicate         // had it
	frameOlder             // of an attach that was fenced: dropped, not counted
	frameBreach            // breaks the protocol: counted against the channel
)

// chunk is bytes of one frame that the consumer has not taken.
type chunk struct {
	seq  uint64
	data []byte
}

// inStream is the receiving side of one stream.
type inStream struct {
	open     bool
	queue    []chunk
	received uint64 // contiguous offset
	taken    uint64 // by the consumer
	limit    uint64 // granted, absolute
	window   uint64 // what is granted beyond taken; between base and most
	base     uint64
	most     uint64
	paceAt   time.Time // when taken was paceFrom
	paceFrom uint64
	// resumedAt is where an attach went on: frames may reach back before it.
	resumedAt uint64
	eof       bool
	drop      bool // the consumer is gone: take and drop
}

// receiver is the pure state machine of one direction's receiving end: it
// orders frames by sequence, drops what it has, holds what is early, asks for
// holes, and grants credit for what the consumer has taken.
type receiver struct {
	epoch  uint64
	attach uint32 // that frames must carry: the holder's upwards, 0 downwards

	streams  [4]inStream
	early    map[uint64]wire.Frame
	gone     [][2]uint64 // sequences that an earlier attach acknowledged, ahead of nextSeq
	nextSeq  uint64      // first frame not received in order
	told     uint64      // highest sequence that the sender is known to have published
	frameWin uint64
	exit     *wire.Frame // EXIT or RESET, received in order

	sent     wire.State // last credit that left, to know what is new
	creditAt time.Time
	holeAt   time.Time
	holeGap  time.Duration
	asked    bool // the hole was asked for
}

func newReceiver(epoch uint64, attach uint32, frameWindow uint64) receiver {
	return receiver{epoch: epoch, attach: attach, nextSeq: 1, frameWin: frameWindow}
}

func (r *receiver) openStream(st wire.Stream, window, most uint64) {
	r.streams[st] = inStream{open: true, window: window, base: window, most: max(window, most), limit: window}
}

// onFrame takes a frame whose tag was checked.
func (r *receiver) onFrame(now time.Time, f wire.Frame) verdict {
	if f.Attach != r.attach {
		if f.Attach < r.attach {
			return frameOlder
		}
		return frameBreach
	}
	if f.Epoch != r.epoch {
		return frameBreach
	}
	if f.Seq < r.nextSeq {
		return frameDuplicate
	}
	if !r.allowed(f) {
		return frameBreach
	}
	r.told = max(r.told, f.Seq)
	if f.Seq > r.nextSeq {
		if _, had := r.early[f.Seq]; had {
			return frameDuplicate
		}
		if r.early == nil {
			r.early = map[uint64]wire.Frame{}
		}
		r.early[f.Seq] = f
		r.armHole(now)
		return frameEarly
	}
	if !r.accept(now, f) {
		return frameBreach
	}
	for {
		next, ok := r.early[r.nextSeq]
		if !ok {
			break
		}
		delete(r.early, next.Seq)
		if !r.accept(now, next) {
			return frameBreach
		}
	}
	asked := r.asked && !r.holeAt.IsZero()
	r.holeAt = time.Time{}
	r.armHole(now)
	if asked && !r.holeAt.IsZero() {
		r.holeAt = now.Add(holeNext) // a repair is under way: ask for the rest soon
	}
	return frameTaken
}

// allowed checks a frame against what was granted, before anything is kept.
func (r *receiver) allowed(f wire.Frame) bool {
	limit := r.frameLimit()
	switch f.Type {
	case wire.FrameStdin, wire.FrameStdout, wire.FrameStderr:
		s := &r.streams[f.Stream]
		return s.open && !s.eof && f.Seq <= limit && f.End() <= s.limit
	case wire.FrameEOF:
		return r.streams[f.Stream].open && f.Seq <= limit+reservedFrames
	}
	return f.Seq <= limit+reservedFrames
}

// accept takes the next frame in order. It reports false for one whose offset
// disagrees with what came before.
func (r *receiver) accept(now time.Time, f wire.Frame) bool {
	switch f.Type {
	case wire.FrameExit, wire.FrameReset:
		r.exit = &f
	case wire.FrameEOF:
		s := &r.streams[f.Stream]
		if f.Offset != s.received {
			return false
		}
		s.eof = true
	default:
		s := &r.streams[f.Stream]
		if s.eof || f.Offset != s.received && (f.Offset > s.received || f.Offset >= s.resumedAt) {
			return false
		}
		fresh := f.Payload[min(s.received-f.Offset, uint64(len(f.Payload))):]
		s.received = max(s.received, f.End())
		if s.drop {
			s.taken = s.received
		} else if len(fresh) > 0 {
			s.queue = append(s.queue, chunk{seq: f.Seq, data: fresh})
		}
	}
	r.nextSeq++
	r.skipGone()
	r.owe(now, r.exit != nil || f.Type == wire.FrameEOF)
	return true
}

// take tells that the consumer took n bytes of the head of st's queue.
func (r *receiver) take(now time.Time, st wire.Stream, n int) {
	s := &r.streams[st]
	for n > 0 {
		head := &s.queue[0]
		k := min(n, len(head.data))
		head.data = head.data[k:]
		s.taken += uint64(k)
		n -= k
		if len(head.data) == 0 {
			s.queue[0] = chunk{}
			s.queue = s.queue[1:]
			if len(s.queue) == 0 {
				s.queue = nil
			}
		}
	}
	r.owe(now, r.exit != nil && r.ackedSeq() == r.nextSeq-1)
}

// discard takes and drops what st holds and whatever comes.
func (r *receiver) discard(now time.Time, st wire.Stream) {
	s := &r.streams[st]
	s.drop, s.queue, s.taken = true, nil, s.received
	r.owe(now, true)
}

// owe arms the credit clock, or makes it due at once when enough was taken: a
// quarter of the byte or of the frame window, or the end.
func (r *receiver) owe(now time.Time, urgent bool) {
	if !urgent {
		urgent = r.frameLimit()-r.sent.FrameLimit >= max(1, r.frameWin/4)
		for i := range r.streams {
			s := &r.streams[i]
			urgent = urgent || s.open && s.taken-r.sent.Streams[i].Acked >= max(1, s.window/4)
		}
	}
	switch {
	case urgent:
		r.creditAt = now
	case r.creditAt.IsZero():
		if r.frameLimit() > r.sent.FrameLimit || r.news() {
			r.creditAt = now.Add(creditDelay)
		}
	}
}

// news reports whether the consumer has taken anything that the sender was not told of.
func (r *receiver) news() bool {
	for i := range r.streams {
		if r.streams[i].taken > r.sent.Streams[i].Acked {
			return true
		}
	}
	return r.ackedSeq() > r.sent.AckedSeq
}

// ackedSeq is the last sequence up to which every frame was taken.
func (r *receiver) ackedSeq() uint64 {
	acked := r.nextSeq - 1
	for i := range r.streams {
		if q := r.streams[i].queue; len(q) > 0 {
			acked = min(acked, q[0].seq-1)
		}
	}
	return acked
}

// frameLimit is the highest sequence a data frame may have: the frames taken
// so far, in whatever order, and a window.
func (r *receiver) frameLimit() uint64 {
	waiting := 0
	for i := range r.streams {
		waiting += len(r.streams[i].queue)
	}
	return r.nextSeq - 1 - uint64(waiting) + r.goneAhead() + r.frameWin
}

// fill writes the receiver's half of a state and remembers that it was told.
func (r *receiver) fill(now time.Time, st *wire.State) {
	st.AckedSeq = r.ackedSeq()
	st.FrameLimit = r.frameLimit()
	for i := range r.streams {
		s := &r.streams[i]
		if !s.open {
			continue
		}
		s.pace(now)
		s.limit = max(s.limit, s.taken+s.window)
		st.Streams[i] = wire.Credit{Acked: s.taken, Limit: s.limit}
	}
	r.sent = *st
	r.creditAt = time.Time{}
}

// pace doubles the window of a consumer that takes it whole within windowSpan
// and leaves nothing waiting, and halves it for one that needs ten times as long.
func (s *inStream) pace(now time.Time) {
	switch {
	case s.paceAt.IsZero():
	case s.taken-s.paceFrom < s.window:
		return
	case now.Sub(s.paceAt) < windowSpan && len(s.queue) == 0:
		s.window = min(2*s.window, s.most)
	case now.Sub(s.paceAt) > 10*windowSpan:
		s.window = max(s.window/2, s.base)
	}
	s.paceAt, s.paceFrom = now, s.taken
}

// heardLast takes the sender's word that it has published everything up to seq.
func (r *receiver) heardLast(now time.Time, seq uint64) {
	if r.exit == nil && seq <= r.frameLimit()+reservedFrames {
		r.told = max(r.told, seq)
		r.armHole(now)
	}
}

func (r *receiver) armHole(now time.Time) {
	wait := tailWait
	if len(r.early) > 0 {
		wait = holeWait
	}
	switch {
	case r.told < r.nextSeq:
		r.holeAt, r.asked = time.Time{}, false
	case r.holeAt.IsZero(), !r.asked && r.holeAt.After(now.Add(wait)):
		r.holeGap = wait
		r.holeAt = now.Add(wait)
	}
}

// creditDue reports whether an acknowledgement must leave now.
func (r *receiver) creditDue(now time.Time) bool {
	return !r.creditAt.IsZero() && !now.Before(r.creditAt)
}

// tick acts on the clock: from and to, when not 0, are frames to ask for.
func (r *receiver) tick(now time.Time) (from, to uint64) {
	if !r.holeAt.IsZero() && !now.Before(r.holeAt) {
		r.asked = true
		r.holeGap = min(2*r.holeGap, holeMax)
		r.holeAt = now.Add(r.holeGap)
		from, to = r.nextSeq, r.told
		for seq := range r.early {
			to = min(to, seq-1)
		}
	}
	return from, to
}

func (r *receiver) next() time.Time { return earliest(r.creditAt, r.holeAt) }
