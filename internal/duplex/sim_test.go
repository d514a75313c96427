package duplex

import (
	"bytes"
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulator with this seed alone")
	seedsFlag = flag.Uint64("seeds", 0, "run the simulator with so many seeds")
)

// sim is one direction of a channel in virtual time: a sender, a receiver, a log
// with a ring, and a link with faults; down with stdout and stderr, where an
// attach replaces the receiver, or up with stdin, where it replaces the sender.
// One goroutine, no clock: the same seed is the same run.
type sim struct {
	seed uint64
	rnd  *rand.Rand
	now  time.Time
	pq   events
	n    int // events so far, breaks ties

	up      bool
	streams []wire.Stream
	snd     *simSender
	rcv     *receiver
	key     *wire.FrameKey

	data   [4][]byte // what the consumer must have in the end
	got    [4][]byte
	paused [4]bool

	log    []logged // the ring of one subject
	logSeq uint64
	lostAt int // times the log was lost
	cut    bool
	refuse bool
	faults struct{ dropStore, dropAck, dropLive, dupLive, dropCtl, dupCtl, refuse float64 }
	jitter time.Duration
	window uint64
	attach uint32
	tiny   bool // many small frames of stderr past a stuck stdout: the ring turns
	fail   string
}

// simSender is a sender and the producer that feeds it.
type simSender struct {
	sender
	data    [4][]byte
	offered [4]int
	exit    bool
	fenced  bool
	counter uint64 // of the states sent to it
}

type logged struct {
	frameSeq uint64
	buf      []byte
}

const simRing = 128

type event struct {
	at time.Time
	n  int
	f  func()
}
type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].n < q[j].n
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func (s *sim) after(d time.Duration, f func()) {
	s.n++
	heap.Push(&s.pq, event{s.now.Add(d), s.n, f})
}

func (s *sim) hop() time.Duration {
	return 100*time.Microsecond + time.Duration(s.rnd.Int64N(int64(s.jitter)))
}

func (s *sim) hit(p float64) bool { return p > 0 && s.rnd.Float64() < p }

func newSim(seed uint64) *sim {
	s := &sim{seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(0, 0), attach: 1}
	s.key = wire.NewFrameKey(wire.KeyDown(bytes.Repeat([]byte{3}, wire.SecretSize)), subjects.Down)
	s.window = uint64(4096 << s.rnd.IntN(7))
	s.snd = &simSender{sender: sender{key: s.key, epoch: 1, frameLimit: FrameWindow}}
	budgets := map[wire.Stream]int{wire.Stdout: stdoutBudget, wire.Stderr: stderrBudget}
	s.streams = []wire.Stream{wire.Stdout, wire.Stderr}
	rcv := newReceiver(1, 0, FrameWindow)
	if s.up = s.rnd.IntN(3) == 0; s.up {
		s.streams, budgets = []wire.Stream{wire.Stdin}, map[wire.Stream]int{wire.Stdin: stdinBudget}
		s.snd.attach, rcv.attach = 1, 1
	}
	s.rcv = &rcv
	most := s.window << s.rnd.IntN(4)
	for _, st := range s.streams {
		s.snd.openStream(st, s.window, budgets[st])
		s.rcv.openStream(st, s.window, most)
		s.data[st] = s.bytes(s.rnd.IntN(200_000))
	}
	s.snd.data = s.data
	s.own(s.snd)
	p := func() float64 {
		if s.rnd.IntN(2) == 0 {
			return 0
		}
		return s.rnd.Float64() * 0.4
	}
	s.faults.dropStore, s.faults.dropAck, s.faults.dropLive, s.faults.dupLive = p(), p(), p(), p()
	s.faults.dropCtl, s.faults.dupCtl, s.faults.refuse = p(), p(), p()
	s.jitter = time.Duration(1+s.rnd.IntN(30)) * time.Millisecond
	if s.tiny = s.rnd.IntN(4) == 0; s.tiny {
		s.jitter = time.Millisecond
	}
	s.schedule()
	return s
}

func (s *sim) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.rnd.Uint32())
	}
	return b
}

// own ties a sender's messages to the link.
func (s *sim) own(snd *simSender) {
	snd.emit = func(m outMsg) {
		if m.id != 0 {
			s.after(0, func() { s.store(snd, m) }) // order kept: ties run in order
			return
		}
		s.control(func() { s.onFrame(s.rcv, bytes.Clone(m.payload[1:])) })
	}
}

// attachDown replaces the receiver by another client's, which goes on at what the
// sender was told that the first one had taken.
func (s *sim) attachDown() {
	if s.done() {
		return
	}
	next := newReceiver(1, 0, FrameWindow)
	for _, st := range s.streams {
		next.openStream(st, s.window, s.rcv.streams[st].most)
	}
	var from *wire.Offsets
	if s.rnd.IntN(2) == 0 {
		from = &wire.Offsets{Stdout: uint64(len(s.got[wire.Stdout])), Stderr: uint64(len(s.got[wire.Stderr]))}
		if !s.snd.acknowledge(s.now, from) {
			s.failf("an honest position was refused")
		}
	}
	s.attach++
	s.snd.counter = 0
	p := s.snd.handOver(s.now, wire.DownCredit{Stdout: s.window, Stderr: s.window, FrameLimit: FrameWindow})
	next.resume(s.now, &p)
	for _, st := range s.streams {
		at := next.streams[st].taken
		if at > uint64(len(s.got[st])) {
			s.failf("%v: goes on at %d although only %d were taken", st, at, len(s.got[st]))
			return
		}
		s.got[st] = s.got[st][:at]
	}
	if p.AckedSeq == p.LastSeq && s.rcv.exit != nil {
		next.exit = s.rcv.exit // EXIT was acknowledged: the record has it
	}
	s.rcv = &next
}

// attachUp replaces the sender: what the receiver has in order stands, the rest
// is the new client's to say. The old one goes on until it hears of it.
func (s *sim) attachUp() {
	if s.rcv.exit != nil || s.rcv.streams[wire.Stdin].eof {
		return
	}
	s.attach++
	old := s.snd
	s.rcv.handOver(s.attach)
	in := &s.rcv.streams[wire.Stdin]
	next := &simSender{sender: sender{key: s.key, epoch: 1, attach: s.attach}}
	next.openStream(wire.Stdin, in.limit, stdinBudget)
	next.frameLimit = s.rcv.frameLimit()
	next.sender.resume(&wire.UpPosition{NextSeq: s.rcv.nextSeq, NextOffset: in.received, Written: in.taken})
	s.data[wire.Stdin] = append(bytes.Clone(old.data[wire.Stdin][:in.received]), s.bytes(s.rnd.IntN(100_000))...)
	next.data, next.offered[wire.Stdin] = s.data, int(in.received)
	s.own(next)
	s.snd = next
	s.after(s.hop(), func() { old.fenced = true })
	s.produce(next, wire.Stdin)
}

// schedule plans the cuts, refusals, losses of the log and pauses of readers;
// after 10 s everything is well.
func (s *sim) schedule() {
	at := func() time.Duration { return time.Duration(s.rnd.IntN(10_000)) * time.Millisecond }
	span := func(set func(bool)) {
		a := at()
		s.after(a, func() { set(true) })
		s.after(min(10*time.Second, a+time.Duration(s.rnd.IntN(4000))*time.Millisecond), func() { set(false) })
	}
	for range s.rnd.IntN(4) {
		span(func(on bool) { s.cut = on })
	}
	for range s.rnd.IntN(2) {
		span(func(on bool) { s.refuse = on })
	}
	if !s.tiny {
		for range s.rnd.IntN(3) {
			s.after(at(), s.loseLog)
		}
	} else {
		s.after(time.Millisecond, func() { s.paused[wire.Stdout] = true })
	}
	for range s.rnd.IntN(3) {
		if s.up {
			s.after(at(), s.attachUp)
		} else {
			s.after(at(), s.attachDown)
		}
	}
	for st := range s.paused {
		if s.rnd.IntN(3) == 0 {
			span(func(on bool) { s.paused[st] = on })
		}
	}
	s.after(10*time.Second, func() {
		s.cut, s.refuse, s.paused = false, false, [4]bool{}
		s.faults.dropStore, s.faults.dropAck, s.faults.dropLive = 0, 0, 0
		s.faults.dropCtl, s.faults.refuse = 0, 0
	})
	for _, st := range s.streams {
		s.produce(s.snd, st)
		s.consume(st)
	}
}

// loseLog is a server that came back with an empty store, or without its last writes.
func (s *sim) loseLog() {
	s.lostAt++
	if s.rnd.IntN(2) == 0 {
		s.log, s.logSeq = nil, 0
		return
	}
	k := s.rnd.IntN(len(s.log) + 1)
	s.log = s.log[:len(s.log)-k]
	s.logSeq -= min(s.logSeq, uint64(k))
}

func (s *sim) control(deliver func()) {
	if s.cut || s.hit(s.faults.dropCtl) {
		return
	}
	s.after(s.hop(), deliver)
	if s.hit(s.faults.dupCtl) {
		s.after(s.hop(), deliver)
	}
}

func (s *sim) store(snd *simSender, m outMsg) {
	if s.cut || s.hit(s.faults.dropStore) {
		return
	}
	if s.refuse || s.hit(s.faults.refuse) {
		s.after(s.hop(), func() { snd.onRefused(s.now, m.id); s.check() })
		return
	}
	f, _ := wire.DecodeFrame(m.payload)
	s.logSeq++
	s.log = append(s.log, logged{f.Seq, m.payload})
	if len(s.log) > simRing {
		s.log = s.log[1:]
	}
	seq := s.logSeq
	if !s.cut && !s.hit(s.faults.dropAck) {
		s.after(s.hop(), func() { snd.onStored(s.now, m.id, seq); s.checkRing(); s.check() })
	}
	deliver := func() { s.onFrame(s.rcv, bytes.Clone(m.payload)) }
	if !s.hit(s.faults.dropLive) {
		s.after(s.hop(), deliver)
		if s.hit(s.faults.dupLive) {
			s.after(s.hop(), deliver)
		}
	}
}

// checkRing is the property that replay rests on: every frame that the sender
// believes stored and unacknowledged is in the log's ring.
func (s *sim) checkRing() {
	if s.lostAt > 0 || len(s.snd.frames) == 0 {
		return // a lost log is noticed only by a later ack; end-to-end equality still holds
	}
	held := map[uint64]bool{}
	for _, l := range s.log {
		held[l.frameSeq] = true
	}
	for _, f := range s.snd.frames {
		if f.stored && !held[f.seq] {
			s.failf("frame %d is stored and unacknowledged but not in the ring of %d", f.seq, simRing)
		}
	}
}

func (s *sim) onFrame(rcv *receiver, buf []byte) {
	f, err := s.key.Open(buf)
	if err != nil {
		s.failf("a frame does not open: %v", err)
		return
	}
	if rcv != s.rcv {
		return // an earlier client's
	}
	if v := rcv.onFrame(s.now, f); v == frameBreach {
		s.failf("an honest frame %d (%d) was a breach", f.Seq, f.Type)
	}
	for _, st := range s.streams {
		if rcv.exit != nil && !rcv.streams[st].eof {
			s.failf("EXIT came before the end of %v", st)
		}
	}
	s.check()
}

// state carries the receiver's state to the sender that holds the channel.
func (s *sim) state() {
	snd, attach := s.snd, s.attach
	snd.counter++
	st := wire.State{Counter: snd.counter}
	s.rcv.fill(s.now, &st)
	s.control(func() {
		if s.attach != attach {
			return // tagged with a fenced attach's number
		}
		if !snd.onState(s.now, &st) {
			s.failf("an honest state was a breach")
		}
		s.check()
	})
}

// tickAll is what End does with its timer.
func (s *sim) tickAll() {
	snd := s.snd
	if snd.tick(s.now) {
		last := snd.lastPublished()
		attach := s.attach
		s.control(func() {
			if s.attach == attach {
				s.rcv.heardLast(s.now, last)
				s.state()
			}
		})
	}
	if from, to := s.rcv.tick(s.now); from != 0 && to >= from {
		attach := s.attach
		s.control(func() {
			if s.attach == attach {
				snd.repair(from, to)
			}
		})
	}
	if s.rcv.creditDue(s.now) {
		s.state()
	}
	s.check()
}

func (s *sim) produce(snd *simSender, st wire.Stream) {
	if snd.fenced {
		return
	}
	left := snd.data[st][snd.offered[st]:]
	if len(left) == 0 {
		snd.closeStream(s.now, st)
		all := true
		for _, st := range s.streams {
			all = all && snd.offered[st] == len(snd.data[st])
		}
		if all && !snd.exit {
			snd.exit = true
			for _, st := range s.streams {
				snd.closeStream(s.now, st)
			}
			snd.finish(s.now, []byte("{}"))
		}
		return
	}
	k := min(len(left), 1<<s.rnd.IntN(15))
	if s.tiny {
		k = min(k, 100)
	}
	snd.offered[st] += snd.offer(s.now, st, left[:k])
	s.after(time.Duration(s.rnd.IntN(3000))*time.Microsecond, func() { s.produce(snd, st) })
}

func (s *sim) consume(st wire.Stream) {
	q := s.rcv.streams[st].queue
	if !s.paused[st] && len(q) > 0 {
		k := 1 + s.rnd.IntN(len(q[0].data))
		s.got[st] = append(s.got[st], q[0].data[:k]...)
		s.rcv.take(s.now, st, k)
		if n := len(s.got[st]); n > len(s.data[st]) || !bytes.Equal(s.got[st][n-k:], s.data[st][n-k:n]) {
			s.failf("%v: bytes up to %d are not a prefix of what was sent", st, n)
		}
		s.check()
	}
	s.after(time.Duration(1+s.rnd.IntN(2000))*time.Microsecond, func() { s.consume(st) })
}

// check holds at every step.
func (s *sim) check() {
	if n := len(s.snd.frames); n > FrameWindow+reservedFrames {
		s.failf("%d frames in flight", n)
	}
	if n := len(s.rcv.early); n > FrameWindow+reservedFrames {
		s.failf("%d frames held early", n)
	}
	for st := range s.rcv.streams {
		in := &s.rcv.streams[st]
		if in.received-in.taken > in.most {
			s.failf("%v: %d bytes wait with a window of at most %d", wire.Stream(st), in.received-in.taken, in.most)
		}
	}
	for st := range s.snd.streams {
		if o := &s.snd.streams[st]; o.offset > o.limit {
			s.failf("%v: sent to %d past the granted %d", wire.Stream(st), o.offset, o.limit)
		}
	}
}

func (s *sim) failf(format string, args ...any) {
	if s.fail == "" {
		s.fail = fmt.Sprintf("seed %d at %s: ", s.seed, s.now.Sub(time.Unix(0, 0))) + fmt.Sprintf(format, args...)
	}
}

func (s *sim) done() bool {
	for _, st := range s.streams {
		if len(s.got[st]) != len(s.data[st]) {
			return false
		}
	}
	return s.snd.exit && s.rcv.exit != nil && s.snd.idle() && s.snd.sender.exit == nil
}

// run runs to the end and returns what went wrong, or "".
func (s *sim) run() string {
	end := time.Unix(0, 0).Add(5 * time.Minute)
	for s.fail == "" && !s.done() {
		next := earliest(s.snd.next(), s.rcv.next())
		if len(s.pq) > 0 && (next.IsZero() || !s.pq[0].at.After(next)) {
			e := heap.Pop(&s.pq).(event)
			s.now = e.at
			e.f()
		} else {
			if next.After(s.now) {
				s.now = next
			}
			s.tickAll()
		}
		if s.now.After(end) {
			s.failf("not done after 5 virtual minutes (attach %d): offered %v, got %d of %d, %d of %d, %d of %d, %d unacknowledged",
				s.attach, s.snd.offered, len(s.got[1]), len(s.data[1]), len(s.got[2]), len(s.data[2]), len(s.got[3]), len(s.data[3]), len(s.snd.frames))
		}
	}
	return s.fail
}

// TestI4_Simulator: over any schedule of loss, doubling, reordering, delay, cuts,
// refusals and loss of the log, what arrives is a prefix of what was sent at
// every step and equal at the end.
func TestI4_Simulator(t *testing.T) {
	if *seedFlag != 0 {
		if msg := newSim(*seedFlag).run(); msg != "" {
			t.Fatal(msg)
		}
		return
	}
	seeds := uint64(1000)
	if os.Getenv("WEFT_SOAK") != "" {
		seeds = 10_000
	}
	if raceEnabled {
		seeds /= 20 // the machine has one goroutine and no lock: nothing for the detector to find
	}
	if *seedsFlag != 0 {
		seeds = *seedsFlag
	}
	start := time.Now()
	for seed := uint64(1); seed <= seeds; seed++ {
		if msg := newSim(seed).run(); msg != "" {
			t.Fatalf("%s\nrun it again: go test ./internal/duplex -run I4_Simulator -seed %d", msg, seed)
		}
	}
	t.Logf("%d seeds in %s", seeds, time.Since(start).Round(time.Millisecond))
}
