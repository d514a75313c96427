package duplex

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Side is which end of a channel an End is.
type Side uint8

// The sides: the client sends stdin and receives stdout and stderr.
const (
	Client Side = iota + 1
	Worker
)

// Defaults of an End (docs/PROTOCOL.md, "Limits").
const (
	DefaultWindow     = 256 << 10
	MaxOutputWindow   = 2560 << 10
	MaxStdinWindow    = 3584 << 10
	FrameWindow       = 56 // data frames in flight; 8 more are reserved for EOF, EXIT, RESET
	stdoutBudget      = 40
	stderrBudget      = 16
	stdinBudget       = 56
	MaxProtocolErrors = 100
	DefaultStall      = 5 * time.Minute
)

// Config describes one end of one channel.
type Config struct {
	Side    Side
	Channel uuid.UUID
	Epoch   uint64
	Link    Link
	// Window is what this end grants per stream before it knows its consumer, in
	// bytes; 0: DefaultWindow. MaxWindow is what it may grow to while the consumer
	// keeps pace; 0: Window if that is set, else MaxOutputWindow or MaxStdinWindow.
	Window, MaxWindow uint64
	// Stall is how long the log may refuse before the end fails with UNAVAILABLE; 0: DefaultStall.
	Stall time.Duration
	// Pool, if set, bounds what this end has in flight together with others.
	Pool *Pool
	// Readable, if set, is called without locks when bytes or the end of a
	// stream have come for the consumer. It must not block.
	Readable func(wire.Stream)
	// Request, if set, obeys a control request of the other end once; its answer
	// is kept and given again when the request is repeated. It must not block.
	Request func(wire.Request) wire.Answer
	// NextKey, if set, gives K_up of an attach: the worker's end then obeys attach
	// requests of whoever holds the key of the newest one. It must not block.
	NextKey func(attach uint32) wire.Key
	// Attached, if set, is called without locks after an attach request was obeyed.
	Attached func(attach uint32)
	// Failed, if set, is called once, without locks, when the end fails by
	// itself: too many protocol errors, a stalled log, a fence.
	Failed func(*wire.Error)
}

// Grant is what an end learns when its channel opens: its attach number, the
// keys, and the credit that the other end gives to start with (worker: for
// stdout and stderr; client: for stdin).
type Grant struct {
	Attach  uint32
	KeyUp   wire.Key
	KeyDown wire.Key
	Credit  [4]uint64 // absolute limit by stream
	Frames  uint64    // frame limit
	// Resume, on a client, is where the channel stands that it attaches to.
	Resume *Resume
}

// Counters are what an end has dropped, by reason.
type Counters struct {
	Protocol   uint64 // malformed or against the protocol; bounded by MaxProtocolErrors
	Tag        uint64 // wrong tag: metered only, anyone may publish those
	Duplicates uint64
	Older      uint64 // of a fenced attach
}

// End is one end of one channel: the two state machines, the clock that moves
// them, and the waiting of those who read and write. It is a Handler for its
// link. Its methods are safe for concurrent use; one goroutine at a time may
// write, and one may read, each stream.
//
// Lock order: mu, then nothing. The link is called without mu, by one
// goroutine at a time, in the order in which messages were made.
type End struct {
	cfg      Config
	in, out  subjects.Dir
	done     chan struct{} // closed with EXIT, a failure, or Close
	idle     chan struct{} // closed when everything sent, EXIT included, was taken
	timerSet time.Time     // guarded by mu, as all below

	mu       sync.Mutex
	cond     [4]*sync.Cond
	send     sender
	recv     receiver
	loan     loan
	promised [4]int // bytes that Room has promised and WriteBuf has not brought
	started  bool
	keyIn    wire.Key
	keyOut   wire.Key
	frameIn  *wire.FrameKey
	early    [][]byte // frames that came before the keys
	counter  uint64   // of the states this end sends
	written  uint64   // told by the other end: bytes the process's stdin took
	closedAt uint64   // stdin was closed by the process after so many bytes
	stdinEnd bool     // closedAt holds
	timer    *time.Timer
	outbox   []outMsg
	draining bool
	failure  *wire.Error
	report   *wire.Error // failure that Failed has not been told yet
	closed   bool
	exited   *wire.Exit
	finished bool // EXIT was handed to the sender
	heard    time.Time
	counts   Counters
	reqs     requests
	handed   handover
}

// New makes an end. It sends nothing until Start.
func New(cfg Config) *End {
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
		if cfg.MaxWindow == 0 {
			cfg.MaxWindow = MaxOutputWindow
			if cfg.Side == Worker {
				cfg.MaxWindow = MaxStdinWindow
			}
		}
	}
	if cfg.Stall == 0 {
		cfg.Stall = DefaultStall
	}
	e := &End{cfg: cfg, done: make(chan struct{}), idle: make(chan struct{}), heard: time.Now()}
	e.recv = newReceiver(cfg.Epoch, 0, FrameWindow)
	e.loan.pool = cfg.Pool
	e.send.emit = func(m outMsg) { e.outbox = append(e.outbox, m) }
	e.send.epoch = cfg.Epoch
	if cfg.Side == Client {
		e.in, e.out = subjects.Down, subjects.Up
		e.send.openStream(wire.Stdin, cfg.Window, stdinBudget)
		e.recv.openStream(wire.Stdout, cfg.Window, cfg.MaxWindow)
		e.recv.openStream(wire.Stderr, cfg.Window, cfg.MaxWindow)
	} else {
		e.in, e.out = subjects.Up, subjects.Down
		e.send.openStream(wire.Stdout, 0, stdoutBudget)
		e.send.openStream(wire.Stderr, 0, stderrBudget)
		e.recv.openStream(wire.Stdin, cfg.Window, cfg.MaxWindow)
	}
	for i := range e.cond {
		e.cond[i] = sync.NewCond(&e.mu)
	}
	return e
}

// Credit is what this end grants before it has received a frame: the limit
// of each stream and the frame limit, for the open request or its reply.
func (e *End) Credit() (limit, frames uint64) { return e.cfg.Window, FrameWindow }

// Start gives the end its keys: what was queued goes out, and frames that came
// early are taken.
func (e *End) Start(g Grant) {
	e.mu.Lock()
	if e.started || e.closed {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	e.started = true
	e.heard = now
	e.keyIn, e.keyOut = g.KeyDown, g.KeyUp
	if e.cfg.Side == Worker {
		e.keyIn, e.keyOut = g.KeyUp, g.KeyDown
		e.recv.attach = g.Attach
	} else {
		e.send.attach = g.Attach
	}
	e.reqs.attach = g.Attach
	e.frameIn = wire.NewFrameKey(e.keyIn, e.in)
	e.send.key = wire.NewFrameKey(e.keyOut, e.out)
	for st, limit := range g.Credit {
		e.send.streams[st].limit = limit
	}
	e.send.frameLimit = g.Frames
	if g.Resume != nil {
		if err := e.resume(now, g.Resume); err != nil {
			e.fail(err)
		}
	}
	early := e.early
	e.early = nil
	e.send.flush(now)
	e.unlock(now)
	for _, buf := range early {
		e.Frame(buf)
	}
}

// unlock releases mu after a step at now: it sets the timer, wakes who waits,
// and sends what the step made. Only one goroutine sends at a time, so that
// frames leave in order.
func (e *End) unlock(now time.Time) {
	e.checkStall(now)
	e.sendDueState(now)
	e.arm(now)
	if e.finished && e.send.idle() && e.send.exit == nil {
		select {
		case <-e.idle:
		default:
			close(e.idle)
		}
	}
	if report := e.report; report != nil && e.cfg.Failed != nil {
		e.report = nil
		defer e.cfg.Failed(report)
	}
	if n := e.handed.report; n != 0 && e.cfg.Attached != nil {
		e.handed.report = 0
		defer e.cfg.Attached(n)
	}
	if wake := e.repay(); len(wake) > 0 {
		defer wakeEnds(wake)
	}
	if e.draining {
		e.mu.Unlock()
		return
	}
	e.draining = true
	for len(e.outbox) > 0 {
		batch := e.outbox
		e.outbox = nil
		e.mu.Unlock()
		for _, m := range batch {
			// A message that does not leave is repeated by the state machines.
			if m.id != 0 {
				_ = e.cfg.Link.Store(m.id, m.payload)
			} else {
				_ = e.cfg.Link.Control(m.payload)
			}
		}
		e.mu.Lock()
		if e.outbox == nil {
			clear(batch)
			e.outbox = batch[:0]
		}
	}
	e.draining = false
	e.mu.Unlock()
}

// repay returns to the pool what is no longer in flight, and everything once
// the end is over. The ends that may go on come back.
func (e *End) repay() []*End {
	if e.closed || e.failure != nil {
		return e.loan.close()
	}
	n := e.send.released
	e.send.released = 0
	return e.loan.acked(n)
}

// wakeEnds lets writers that waited for a pool try again. Called without locks.
func wakeEnds(ends []*End) {
	for _, e := range ends {
		e.mu.Lock()
		e.wakeAll()
		e.mu.Unlock()
	}
}

// arm sets the one timer to the earliest time at which something is due.
func (e *End) arm(now time.Time) {
	if e.closed || !e.started {
		return
	}
	next := earliest(earliest(e.send.next(), e.recv.next()), e.reqs.next())
	if next.IsZero() || !e.timerSet.IsZero() && !next.Before(e.timerSet) {
		return // nothing is due, or the timer fires first and looks again
	}
	e.timerSet = next
	if e.timer == nil {
		e.timer = time.AfterFunc(next.Sub(now), e.tick)
	} else {
		e.timer.Reset(next.Sub(now))
	}
}

func (e *End) tick() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	e.timerSet = time.Time{}
	if e.send.tick(now) {
		e.sendState(now, wire.ControlProbe)
	}
	from, to := e.recv.tick(now)
	if from != 0 && to >= from {
		e.sendRequest(wire.Request{Verb: wire.VerbRepair, From: from, To: to})
	}
	e.reqs.tick(now, e.sendRequest)
	e.unlock(now)
}

func (e *End) checkStall(now time.Time) {
	if e.failure == nil && e.send.stalledFor(now) >= e.cfg.Stall {
		e.fail(wire.Errorf(wire.CodeUnavailable,
			"the channel's log has taken nothing for %s; the operator's log names the stream", e.cfg.Stall).With("outcome", string(wire.Stalled)))
	}
}

// sendDueState sends a CREDIT if the consumer has taken enough or the delay is over.
func (e *End) sendDueState(now time.Time) {
	if !e.started || e.closed {
		return
	}
	if e.recv.creditDue(now) {
		e.sendState(now, wire.ControlCredit)
	}
}

func (e *End) sendState(now time.Time, kind wire.ControlKind) {
	e.outbox = append(e.outbox, outMsg{payload: e.appendState(now, nil, kind)})
}

func (e *End) appendState(now time.Time, b []byte, kind wire.ControlKind) []byte {
	e.counter++
	st := wire.State{
		Kind: kind, Channel: e.cfg.Channel, Attach: e.reqs.attach, Counter: e.counter,
		LastSeq: e.send.lastPublished(),
	}
	if e.cfg.Side == Worker {
		st.Written = e.recv.streams[wire.Stdin].taken
	}
	e.recv.fill(now, &st)
	return st.Append(b, e.keyOut)
}

// fail ends the end by itself. Called with mu held; unlock calls Failed.
func (e *End) fail(err *wire.Error) {
	if e.failure != nil || e.exited != nil || e.closed {
		return
	}
	e.failure = err
	close(e.done)
	e.wakeAll()
	e.report = err
}

func (e *End) wakeAll() {
	for _, c := range e.cond {
		c.Broadcast()
	}
}

// Close ends the use of the end on this side: nothing more is sent, waiting
// calls return. It does not tell the other end. Idempotent.
func (e *End) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.failure == nil && e.exited == nil {
		e.failure = wire.Errorf(wire.CodeChannelEnded, "the channel was closed on this side")
		close(e.done)
	}
	e.wakeAll()
	wake := e.repay()
	e.mu.Unlock()
	wakeEnds(wake)
}

// Fail ends the end with err as the reason for all who wait, unless it ended already.
func (e *End) Fail(err *wire.Error) {
	e.mu.Lock()
	e.fail(err)
	e.unlock(time.Now())
}

// Done is closed when EXIT has been received, or the end failed or was closed.
func (e *End) Done() <-chan struct{} { return e.done }

// Taken is closed when everything this end sent, EXIT included, was taken.
func (e *End) Taken() <-chan struct{} { return e.idle }

// Exit returns the EXIT that was received, or why there is none (yet: nil, nil).
func (e *End) Exit() (*wire.Exit, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exited != nil {
		return e.exited, nil
	}
	if e.failure != nil {
		return nil, e.failure
	}
	return nil, nil
}

// Counters returns what was dropped so far.
func (e *End) Counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts
}

// Heard is when the last valid message of the other end came.
func (e *End) Heard() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard
}

// Received is how many bytes of each stream have come in order.
func (e *End) Received() wire.Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	return wire.Totals{
		Stdin:  e.recv.streams[wire.Stdin].received,
		Stdout: e.recv.streams[wire.Stdout].received,
		Stderr: e.recv.streams[wire.Stderr].received,
	}
}

// Sent is how many bytes of each stream this end has taken to send.
func (e *End) Sent() wire.Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	return wire.Totals{
		Stdin:  e.send.streams[wire.Stdin].taken(),
		Stdout: e.send.streams[wire.Stdout].taken(),
		Stderr: e.send.streams[wire.Stderr].taken(),
	}
}

// Consumed is how many bytes of a received stream the consumer has taken.
func (e *End) Consumed(st wire.Stream) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recv.streams[st].taken
}

// Written is how many bytes of stdin the process's pipe has taken, as far as
// the other end has told.
func (e *End) Written() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.written
}

// Finish closes every outgoing stream and sends EXIT after them. The totals are
// filled in. Only the first call counts.
func (e *End) Finish(o wire.Outcome) wire.Exit {
	e.mu.Lock()
	now := time.Now()
	x := wire.Exit{Outcome: o, Totals: wire.Totals{
		Stdin:  e.recv.streams[wire.Stdin].taken,
		Stdout: e.send.streams[wire.Stdout].taken(),
		Stderr: e.send.streams[wire.Stderr].taken(),
	}}
	if e.stdinEnd {
		x.Totals.Stdin = e.closedAt
	}
	if !e.finished {
		e.finished = true
		for st := range e.send.streams {
			e.send.closeStream(now, wire.Stream(st))
		}
		b, _ := json.Marshal(x) // plain fields: cannot fail
		e.send.finish(now, b)
		e.wakeAll()
	}
	e.unlock(now)
	return x
}
