package natsbus

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// clientQueue is how many messages of all channels of a client may wait for its
// dispatcher; with full frames 256 MiB.
const clientQueue = 4096

// UnknownFunc takes a control message for a channel that is not open here. It
// must not block.
type UnknownFunc func(ch subjects.Channel, control []byte)

// KeepaliveFunc takes a client's keepalive; reply may be called later and from
// any goroutine, once. It must not block.
type KeepaliveFunc func(tenant, client string, body []byte, reply func([]byte))

// Mux carries all channels of one process over one Conn.
type Mux struct {
	// Set once.
	c       *Conn
	inbox   string
	route   string // "" on a client
	unknown UnknownFunc
	queue   chan *nats.Msg // a client's; nil ends the dispatcher
	subs    []*Subscription
	done    sync.WaitGroup
	close   func()

	nextID    atomic.Uint64
	keepalive atomic.Pointer[KeepaliveFunc]

	mu        sync.RWMutex // no calls out while held
	closed    bool
	ports     map[uint64]*Port
	bySubject map[string]target             // a worker's: two wildcards for all channels
	bySub     map[*nats.Subscription]target // a client's: two subscriptions per channel
}

// target is what a message is for.
type target struct {
	port    *Port
	control bool
}

func newMux(c *Conn) (*Mux, error) {
	m := &Mux{
		c: c, inbox: c.nc.NewInbox(),
		ports:     map[uint64]*Port{},
		bySubject: map[string]target{},
		bySub:     map[*nats.Subscription]target{},
	}
	m.close = sync.OnceFunc(m.shut)
	return m, m.subscribe(m.inbox+".*.*", m.ack)
}

func (m *Mux) subscribe(subject string, h nats.MsgHandler) error {
	s, err := m.c.subscribe(subject, "", h)
	if err != nil {
		return err
	}
	m.subs = append(m.subs, s)
	return nil
}

// NewClientMux makes the client's side: it subscribes per channel, and one
// goroutine dispatches for all of them. Error: UNAVAILABLE after Close of c.
func NewClientMux(c *Conn) (*Mux, error) {
	m, err := newMux(c)
	if err != nil {
		return nil, err
	}
	m.queue = make(chan *nats.Msg, clientQueue)
	m.done.Go(m.dispatch)
	return m, nil
}

// NewWorkerMux makes the worker's side: it listens for every channel on route.
// A control message for a channel that is not open goes to unknown if that is
// not nil. Errors: INVALID_ARGUMENT, UNAVAILABLE after Close of c. Call c.Flush
// before telling anybody that the route can be used.
func NewWorkerMux(c *Conn, route string, unknown UnknownFunc) (*Mux, error) {
	if err := subjects.CheckToken(route); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the route %v", err)
	}
	m, err := newMux(c)
	if err != nil {
		return nil, err
	}
	m.route, m.unknown = route, unknown
	if err := m.subscribe(subjects.WorkerLive(route), m.workerMessage); err != nil {
		m.Close()
		return nil, err
	}
	if err := m.subscribe(subjects.WorkerControl(route), m.workerMessage); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Open makes this process's end of a channel. What comes in is kept, within
// bounds, until Bind. On a client the subscriptions are on their way when Open
// returns, so a request sent afterwards cannot overtake them. A client may
// open a channel several times (an observer beside the holder), a worker once:
// CONFLICT. Other errors: INVALID_ARGUMENT, UNAVAILABLE after Close. The caller
// owes a Close of the port.
func (m *Mux) Open(ch subjects.Channel) (*Port, error) {
	if err := ch.Check(); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "%v", err)
	}
	if m.route != "" {
		return m.openWorker(ch)
	}
	return m.openClient(ch)
}

func (m *Mux) openWorker(ch subjects.Channel) (*Port, error) {
	if ch.Route != m.route {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the channel is not on this worker's route")
	}
	p := newPort(m, ch, subjects.Down, subjects.Up)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errMuxClosed()
	}
	if _, ok := m.bySubject[p.liveIn]; ok {
		return nil, wire.Errorf(wire.CodeConflict, "the channel is open already")
	}
	m.ports[p.id] = p
	m.bySubject[p.liveIn] = target{port: p}
	m.bySubject[p.controlIn] = target{port: p, control: true}
	return p, nil
}

func (m *Mux) openClient(ch subjects.Channel) (*Port, error) {
	p := newPort(m, ch, subjects.Up, subjects.Down)
	live, err := m.c.nc.ChanSubscribe(p.liveIn, m.queue)
	if err != nil {
		return nil, outError(err)
	}
	control, err := m.c.nc.ChanSubscribe(p.controlIn, m.queue)
	if err != nil {
		_ = live.Unsubscribe()
		return nil, outError(err)
	}
	p.subs = []*nats.Subscription{live, control}
	// A message that comes before the maps know the subscription is dropped and
	// repaired. Only an attach can see that: a new channel sends nothing yet.
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.ports[p.id] = p
		m.bySub[live] = target{port: p}
		m.bySub[control] = target{port: p, control: true}
	}
	m.mu.Unlock()
	if closed {
		p.Close()
		return nil, errMuxClosed()
	}
	return p, nil
}

func errMuxClosed() error {
	return wire.Errorf(wire.CodeUnavailable, "this process is shutting down its channels")
}

func (m *Mux) remove(p *Port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ports, p.id)
	if m.route != "" {
		delete(m.bySubject, p.liveIn)
		delete(m.bySubject, p.controlIn)
	}
	for _, s := range p.subs {
		delete(m.bySub, s)
	}
}

// Keepalives says who answers the keepalives of clients (a worker's Mux only).
func (m *Mux) Keepalives(h KeepaliveFunc) { m.keepalive.Store(&h) }

// SendControl sends a control message from this side of a channel that has no
// port, such as GONE. Errors: INVALID_ARGUMENT, else as Port.Control.
func (m *Mux) SendControl(ch subjects.Channel, msg []byte) error {
	dir := subjects.Up
	if m.route != "" {
		dir = subjects.Down
	}
	return m.c.Publish(ch.Control(dir), msg)
}

// Close closes every port and returns when nothing of the Mux runs any more.
// The Conn stays. Calling it again does nothing.
func (m *Mux) Close() { m.close() }

func (m *Mux) shut() {
	m.mu.Lock()
	m.closed = true
	ports := make([]*Port, 0, len(m.ports))
	for _, p := range m.ports {
		ports = append(ports, p)
	}
	m.mu.Unlock()
	for _, p := range ports {
		p.Close()
	}
	for _, s := range m.subs {
		s.Close()
	}
	if m.queue != nil {
		// Every subscription that writes to the queue has ended.
		m.queue <- nil
		m.done.Wait()
	}
}

// dispatch is the client's one goroutine: decode, find, hand over.
func (m *Mux) dispatch() {
	for msg := range m.queue {
		if msg == nil {
			return
		}
		m.mu.RLock()
		t, ok := m.bySub[msg.Sub]
		m.mu.RUnlock()
		if !ok {
			m.c.counters.unknownChannel.Add(1)
			continue
		}
		m.deliver(t, msg)
	}
}

func (m *Mux) workerMessage(msg *nats.Msg) {
	m.mu.RLock()
	t, ok := m.bySubject[msg.Subject]
	m.mu.RUnlock()
	if ok {
		m.deliver(t, msg)
		return
	}
	m.stray(msg)
}

func (m *Mux) deliver(t target, msg *nats.Msg) {
	if t.control {
		if fromJetStream(msg.Header) {
			m.c.counters.controlJetStream.Add(1)
			return
		}
		t.port.take(event{kind: eventControl, buf: msg.Data})
		return
	}
	if !republished(msg.Header, t.port.twin) {
		m.c.counters.noJetStream.Add(1)
		return
	}
	t.port.take(event{kind: eventFrame, buf: msg.Data})
}

// republished reports whether JetStream republished a message from its stored
// twin. JetStream adds its headers to those that the publisher set and does
// not replace them, so more than one value is a forgery.
func republished(h nats.Header, twin string) bool {
	s := h["Nats-Subject"]
	return len(s) == 1 && s[0] == twin && len(h["Nats-Stream"]) == 1 && len(h["Nats-Sequence"]) == 1
}

// stray takes what came to a worker for no open channel: keepalives, and
// messages for channels that have ended.
func (m *Mux) stray(msg *nats.Msg) {
	s, err := subjects.Parse(msg.Subject)
	if err != nil || s.Kind != subjects.KindControl {
		m.c.counters.unknownChannel.Add(1)
		return
	}
	if fromJetStream(msg.Header) {
		m.c.counters.controlJetStream.Add(1)
		return
	}
	if s.Channel.Lease == subjects.Keepalive {
		h := m.keepalive.Load()
		if h == nil {
			m.c.counters.unknownChannel.Add(1)
			return
		}
		in := Msg{Subject: msg.Subject, Reply: msg.Reply, c: m.c}
		(*h)(s.Channel.Tenant, s.Channel.Channel, msg.Data, func(b []byte) {
			if err := in.Respond(b); err != nil {
				m.c.seldom.Debug().Err(err).Msg("a keepalive was not answered")
			}
		})
		return
	}
	m.c.counters.unknownChannel.Add(1)
	if m.unknown != nil {
		m.unknown(s.Channel, msg.Data)
	}
}

// ack takes JetStream's answer to a store; the reply subject says whose.
func (m *Mux) ack(msg *nats.Msg) {
	id, seq, ok := m.parseReply(msg.Subject)
	if !ok {
		m.c.counters.badAck.Add(1)
		return
	}
	m.mu.RLock()
	p := m.ports[id]
	m.mu.RUnlock()
	if p == nil {
		return // closed since
	}
	streamSeq, why, ok := parseAck(msg.Header, msg.Data)
	switch {
	case !ok:
		m.c.counters.badAck.Add(1)
	case why != 0:
		p.take(event{kind: eventRefused, seq: seq, why: why})
	default:
		p.take(event{kind: eventStored, seq: seq, streamSeq: streamSeq})
	}
}

func (m *Mux) parseReply(subject string) (id, seq uint64, ok bool) {
	rest, ok := strings.CutPrefix(subject, m.inbox)
	if !ok || rest == "" {
		return 0, 0, false
	}
	a, b, ok := strings.Cut(rest[1:], ".")
	if !ok {
		return 0, 0, false
	}
	id, err1 := strconv.ParseUint(a, 10, 64)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	return id, seq, err1 == nil && err2 == nil
}
