package duplex

import (
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Numbers of the sender (docs/PROTOCOL.md, "Sender").
const (
	repeatMin = 250 * time.Millisecond // without a store ack the oldest frame is repeated
	repeatMax = 5 * time.Second
	probeMin  = 200 * time.Millisecond // without an acknowledgement the receiver is asked
	probeMax  = 5 * time.Second
	// The log keeps 128 frames of a direction. A frame whose stored copy is
	// ringGuard publishes old is stored again; until that is acked its age may
	// reach ringNew by new frames and ringFull by copies of others.
	ringGuard = 112
	ringNew   = 120
	ringFull  = 126
	repairMax = 16 // frames given again for one request
)

// outFrame is a frame that the receiver has not acknowledged.
type outFrame struct {
	seq        uint64
	stream     wire.Stream
	typ        wire.FrameType
	end        uint64 // offset after its bytes
	buf        []byte // sealed; made once, never altered
	published  bool
	stored     bool   // the last publish was acked
	kept       uint64 // id of the newest publish that was acked
	mark       uint64 // id of its last publish
	markBefore uint64 // id of the publish before that
}

// is reports whether publish id was of this frame.
func (f *outFrame) is(id uint64) bool { return f.published && (f.mark == id || f.markBefore == id) }

// outStream is the sending side of one stream.
type outStream struct {
	open    bool   // exists in this direction
	offset  uint64 // bytes that are in frames
	pending []byte // HeaderSize of room and the bytes gathered after offset
	limit   uint64 // absolute, granted by the receiver
	acked   uint64 // absolute, taken by the receiver's consumer
	frames  int    // unacknowledged data frames
	budget  int    // at most so many
	ending  bool   // EOF wanted once pending is empty
	ended   bool   // EOF is in a frame
	dropped bool   // the receiver wants no more bytes (STDIN_CLOSED)
}

func (s *outStream) pendingLen() int {
	if s.pending == nil {
		return 0
	}
	return len(s.pending) - wire.HeaderSize
}

func (s *outStream) taken() uint64 { return s.offset + uint64(s.pendingLen()) }

// sender is the pure state machine of one direction's sending end. It takes
// bytes while there is credit, makes each frame once, keeps it until the
// receiver's consumer has taken it, and says through emit what to publish.
type sender struct {
	key    *wire.FrameKey // nil until started: nothing is framed
	attach uint32
	epoch  uint64
	emit   func(outMsg)

	streams    [4]outStream
	frames     []*outFrame // unacknowledged, by sequence
	unstored   []*outFrame // of these, without a store ack, by sequence
	lastSeq    uint64
	frameLimit uint64
	counter    uint64 // newest state of the peer that was believed

	stores    uint64 // publishes to the log so far; the id of the last
	logID     uint64 // id of the newest publish that was acked
	logSeq    uint64 // its stream sequence
	held      bool   // the log has not answered or refused: only the oldest is tried
	keptMin   uint64 // no unacknowledged frame has a lower kept, 0 apart
	repeatAt  time.Time
	repeatGap time.Duration
	waiting   time.Time // since when the oldest unstored frame waits
	probeAt   time.Time
	probeGap  time.Duration

	wanting  int    // writers that wait for room
	exit     []byte // payload of an EXIT to send after every EOF
	released int64  // bytes that left the sender since somebody looked
}

// outMsg is one message to send: a frame for the log, or a control message.
type outMsg struct {
	id      uint64 // of a publish to the log; 0 for control
	payload []byte
}

func (s *sender) openStream(st wire.Stream, limit uint64, budget int) {
	s.streams[st] = outStream{open: true, limit: limit, budget: budget}
}

// room is how many bytes of st can be taken now.
func (s *sender) room(st wire.Stream) int {
	o := &s.streams[st]
	if !o.open || o.ending {
		return 0
	}
	if o.dropped {
		return wire.MaxPayload
	}
	left := int(min(o.limit-min(o.limit, o.taken()), 1<<30))
	if s.mayFrame(o) {
		return left // what is pending can be framed to make room
	}
	return max(0, min(left, wire.MaxPayload-o.pendingLen()))
}

// mayFrame reports whether a data frame of o can be made now.
func (s *sender) mayFrame(o *outStream) bool {
	return s.key != nil && o.frames < o.budget && s.lastSeq < s.frameLimit && o.offset < o.limit
}

// offer takes as many bytes of p as there is room for and returns how many.
func (s *sender) offer(now time.Time, st wire.Stream, p []byte) int {
	o := &s.streams[st]
	if o.dropped {
		s.released += int64(len(p))
		return len(p)
	}
	taken := 0
	for taken < len(p) {
		n := min(s.room(st), len(p)-taken, wire.MaxPayload-o.pendingLen())
		if n <= 0 {
			if o.pendingLen() > 0 && s.mayFrame(o) {
				s.frameData(now, st)
				continue
			}
			break
		}
		if o.pending == nil {
			o.pending = make([]byte, wire.HeaderSize, wire.HeaderSize+max(n, min(len(p), 512)))
		}
		o.pending = append(o.pending, p[taken:taken+n]...)
		taken += n
	}
	s.flush(now)
	return taken
}

// offerBuf is offer for bytes that stand in a buffer of their own behind
// HeaderSize bytes of room; the buffer may be kept. The caller was promised as
// many: all are taken, also if an attach has lowered the limits meanwhile. They
// wait for credit then.
func (s *sender) offerBuf(now time.Time, st wire.Stream, buf []byte) int {
	o := &s.streams[st]
	n := len(buf) - wire.HeaderSize
	if !o.dropped && o.pending == nil {
		o.pending = buf
		s.flush(now)
		return n
	}
	if got := s.offer(now, st, buf[wire.HeaderSize:]); got < n {
		if o.pending == nil {
			o.pending = make([]byte, wire.HeaderSize, len(buf)-got)
		}
		o.pending = append(o.pending, buf[wire.HeaderSize+got:]...)
		s.flush(now)
	}
	return n
}

// flush makes frames of what is pending: full ones always, smaller ones when
// nothing is in flight (small writes gather while the log works), then EOFs
// and EXIT.
func (s *sender) flush(now time.Time) {
	if s.key == nil {
		return
	}
	all := true
	for _, st := range [...]wire.Stream{wire.Stdin, wire.Stderr, wire.Stdout} {
		o := &s.streams[st]
		if !o.open {
			continue
		}
		for o.pendingLen() > 0 && s.mayFrame(o) &&
			(len(s.unstored) == 0 || o.pendingLen() >= wire.MaxPayload || o.ending) {
			s.frameData(now, st)
		}
		if o.ending && !o.ended && o.pendingLen() == 0 {
			o.ended = true
			s.add(now, wire.Frame{Type: wire.FrameEOF, Stream: st, Offset: o.offset}, make([]byte, wire.HeaderSize))
		}
		all = all && o.ended
	}
	if all && s.exit != nil {
		buf := append(make([]byte, wire.HeaderSize, wire.HeaderSize+len(s.exit)), s.exit...)
		s.exit = nil
		s.add(now, wire.Frame{Type: wire.FrameExit}, buf)
	}
	s.armProbe(now)
}

// armProbe makes sure that a receiver that owes an acknowledgement or credit is asked.
func (s *sender) armProbe(now time.Time) {
	if !s.owed() {
		s.probeAt = time.Time{}
	} else if s.probeAt.IsZero() {
		s.probeGap = probeMin
		s.probeAt = now.Add(s.probeGap)
	}
}

// owed reports whether the receiver owes something: frames unacknowledged,
// bytes gathered for want of credit, or writers that wait for it.
func (s *sender) owed() bool {
	if s.key == nil {
		return false
	}
	if len(s.frames) > 0 || s.wanting > 0 {
		return true
	}
	for i := range s.streams {
		if s.streams[i].pendingLen() > 0 {
			return true
		}
	}
	return false
}

func (s *sender) frameData(now time.Time, st wire.Stream) {
	o := &s.streams[st]
	buf := o.pending
	o.pending = nil
	n := int64(len(buf) - wire.HeaderSize)
	if over := n - min(n, int64(o.limit-o.offset), wire.MaxPayload); over > 0 {
		// Bytes gathered before the open was answered may pass the first credit,
		// those that were promised before an attach its holder's.
		cut := len(buf) - int(over)
		o.pending = append(make([]byte, wire.HeaderSize, wire.HeaderSize+int(over)), buf[cut:]...)
		buf = buf[:cut]
	}
	o.frames++
	f := wire.Frame{Type: st.Data(), Stream: st, Offset: o.offset}
	o.offset += uint64(len(buf) - wire.HeaderSize)
	s.add(now, f, buf)
}

// add seals a frame with the next sequence and publishes it unless the log
// must answer first.
func (s *sender) add(now time.Time, f wire.Frame, buf []byte) {
	s.lastSeq++
	f.Seq, f.Attach, f.Epoch = s.lastSeq, s.attach, s.epoch
	fr := &outFrame{
		seq: f.Seq, stream: f.Stream, typ: f.Type,
		end: f.Offset + uint64(len(buf)-wire.HeaderSize),
		buf: s.key.Seal(buf, f),
	}
	s.frames = append(s.frames, fr)
	s.unstored = append(s.unstored, fr)
	s.publishNew(now)
}

// publishNew publishes the frames that never were, in order, as far as the
// log's answers and the ring allow.
func (s *sender) publishNew(now time.Time) {
	for s.unpublished() > 0 && !s.held && s.ringAllows(now) {
		s.publish(now, s.unstored[len(s.unstored)-s.unpublished()])
	}
}

// unpublished counts the frames at the end of unstored that were never published.
func (s *sender) unpublished() int {
	n := 0
	for n < len(s.unstored) && !s.unstored[len(s.unstored)-1-n].published {
		n++
	}
	return n
}

func (s *sender) publish(now time.Time, f *outFrame) {
	s.stores++
	f.published, f.mark, f.markBefore = true, s.stores, f.mark
	s.emit(outMsg{id: s.stores, payload: f.buf})
	if s.repeatAt.IsZero() {
		s.repeatGap = repeatMin
		s.repeatAt = now.Add(s.repeatGap)
		s.waiting = now
	}
}

// onState takes the receiver's acknowledgement and credit. It reports false,
// and changes nothing, for a state that acknowledges what was never sent.
func (s *sender) onState(now time.Time, st *wire.State) bool {
	if st.Counter <= s.counter {
		return true
	}
	if st.AckedSeq > s.lastSeq {
		return false
	}
	for i := range s.streams {
		if s.streams[i].open && st.Streams[i].Acked > s.streams[i].offset {
			return false
		}
	}
	s.counter = st.Counter
	progress := st.FrameLimit > s.frameLimit
	s.frameLimit = max(s.frameLimit, st.FrameLimit)
	for i := range s.streams {
		o, c := &s.streams[i], st.Streams[i]
		progress = progress || c.Limit > o.limit || c.Acked > o.acked
		o.limit, o.acked = max(o.limit, c.Limit), max(o.acked, c.Acked)
	}
	if s.dropAcked(now, st.AckedSeq) || progress {
		s.probeAt = time.Time{}
	}
	s.publishNew(now)
	s.flush(now)
	return true
}

// dropAcked forgets frames that the consumer has taken.
func (s *sender) dropAcked(now time.Time, ackedSeq uint64) bool {
	gone := func(f *outFrame) bool {
		if f.seq <= ackedSeq {
			return true
		}
		return f.typ == f.stream.Data() && f.stream != wire.StreamNone && f.end <= s.streams[f.stream].acked
	}
	kept := s.frames[:0]
	unstoredGone := false
	for _, f := range s.frames {
		if !gone(f) {
			kept = append(kept, f)
			continue
		}
		if f.typ == f.stream.Data() && f.stream != wire.StreamNone {
			s.streams[f.stream].frames--
			s.released += int64(len(f.buf) - wire.HeaderSize)
		}
		unstoredGone = unstoredGone || !f.stored
	}
	dropped := len(kept) < len(s.frames)
	clear(s.frames[len(kept):])
	s.frames = kept
	if unstoredGone {
		s.dropUnstored(now, gone)
	}
	return dropped
}

// dropUnstored forgets frames that were delivered although the log's ack is missing.
func (s *sender) dropUnstored(now time.Time, gone func(*outFrame) bool) {
	first := s.unstored[0]
	kept := s.unstored[:0]
	for _, f := range s.unstored {
		if !gone(f) {
			kept = append(kept, f)
		}
	}
	clear(s.unstored[len(kept):])
	s.unstored = kept
	if len(kept) == 0 || kept[0] != first {
		s.held = false
		s.storeProgress(now)
	}
}

// discard drops what st holds and what it will be offered: the receiver wants
// no more of it.
func (s *sender) discard(now time.Time, st wire.Stream) {
	o := &s.streams[st]
	s.released += int64(o.pendingLen())
	o.dropped, o.pending = true, nil
	s.flush(now)
}

// closeStream asks for an EOF after the bytes taken so far.
func (s *sender) closeStream(now time.Time, st wire.Stream) {
	if o := &s.streams[st]; o.open {
		o.ending = true
		s.flush(now)
	}
}

// finish asks for an EXIT after the EOF of every stream.
func (s *sender) finish(now time.Time, payload []byte) {
	s.exit = payload
	s.flush(now)
}

// repair gives the frames from to to (inclusive) again over control, as far as
// they are kept, at most repairMax.
func (s *sender) repair(from, to uint64) {
	n := 0
	for _, f := range s.frames {
		if f.seq >= from && f.seq <= to && f.published && n < repairMax {
			s.emit(outMsg{payload: append([]byte{byte(wire.ControlFrame)}, f.buf...)})
			n++
		}
	}
}

// tick acts on the clock: repeats the oldest unstored frame, asks for an
// overdue acknowledgement. It returns whether a probe is due.
func (s *sender) tick(now time.Time) (probe bool) {
	if !s.repeatAt.IsZero() && !now.Before(s.repeatAt) && len(s.unstored) > 0 {
		s.held = true
		s.repeatGap = min(2*s.repeatGap, repeatMax)
		s.repeatAt = now.Add(s.repeatGap)
		s.publish(now, s.unstored[0])
	}
	if !s.probeAt.IsZero() && !now.Before(s.probeAt) {
		s.probeGap = min(2*s.probeGap, probeMax)
		s.probeAt = now.Add(s.probeGap)
		return true
	}
	return false
}

// stalledFor is how long the log has not taken the oldest frame.
func (s *sender) stalledFor(now time.Time) time.Duration {
	if s.repeatAt.IsZero() {
		return 0
	}
	return now.Sub(s.waiting)
}

// next is the earliest time at which tick has something to do; zero: never.
func (s *sender) next() time.Time { return earliest(s.repeatAt, s.probeAt) }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// idle reports that everything sent has been taken.
func (s *sender) idle() bool { return len(s.frames) == 0 }

// lastPublished is the highest sequence that has gone to the log.
func (s *sender) lastPublished() uint64 { return s.lastSeq - uint64(s.unpublished()) }
