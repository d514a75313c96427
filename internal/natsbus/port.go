package natsbus

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
)

// maxEarly is how many messages a port keeps before Bind: the window of one
// direction (64 frames) and the control messages beside it.
const maxEarly = 80

// Port is one end of one channel on a Mux. It implements duplex.Link.
type Port struct {
	// Set once.
	mux                 *Mux
	id                  uint64
	dataOut, controlOut string                         // where this end sends
	liveIn, controlIn   string                         // where it listens
	twin                string                         // the stored subject of liveIn
	ackPrefix           string                         // reply subject of a store without its sequence
	handler             atomic.Pointer[duplex.Handler] // nil before Bind

	mu     sync.Mutex
	early  []event
	closed bool
	subs   []*nats.Subscription // a client's; written by Open before anyone else sees them
}

var _ duplex.Link = (*Port)(nil)

func newPort(m *Mux, ch subjects.Channel, out, in subjects.Dir) *Port {
	id := m.nextID.Add(1)
	return &Port{
		mux: m, id: id,
		dataOut: ch.Data(out), controlOut: ch.Control(out),
		liveIn: ch.Live(in), controlIn: ch.Control(in), twin: ch.Data(in),
		ackPrefix: m.inbox + "." + strconv.FormatUint(id, 10) + ".",
	}
}

// Store publishes a sealed frame; see duplex.Link. The frame is copied before
// Store returns.
func (p *Port) Store(seq uint64, frame []byte) error {
	var b [96]byte
	reply := strconv.AppendUint(append(b[:0], p.ackPrefix...), seq, 10)
	return outError(p.mux.c.nc.PublishRequest(p.dataOut, string(reply), frame))
}

// Control sends a control message; see duplex.Link.
func (p *Port) Control(msg []byte) error {
	return outError(p.mux.c.nc.Publish(p.controlOut, msg))
}

// Bind says who takes what comes in and first hands over, in order, what came
// before. It is called once.
func (p *Port) Bind(h duplex.Handler) {
	for {
		p.mu.Lock()
		batch := p.early
		p.early = nil
		if len(batch) == 0 {
			if !p.closed {
				p.handler.Store(&h)
			}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		for _, e := range batch {
			e.to(h)
		}
	}
}

// Close ends the port: what comes later falls on the floor, except a message
// that is being handed over meanwhile. Calling it again does nothing.
func (p *Port) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.early = nil
	var h duplex.Handler = nobody{}
	p.handler.Store(&h)
	p.mu.Unlock()
	p.mux.remove(p)
	for _, s := range p.subs {
		// It fails only when the connection has ended it already.
		_ = s.Unsubscribe()
	}
}

// take hands e over, or keeps it until there is somebody to take it.
func (p *Port) take(e event) {
	if h := p.handler.Load(); h != nil {
		e.to(*h)
		return
	}
	p.mu.Lock()
	if h := p.handler.Load(); h != nil {
		p.mu.Unlock()
		e.to(*h)
		return
	}
	if len(p.early) < maxEarly {
		p.early = append(p.early, e)
	} else {
		p.mux.c.counters.early.Add(1)
	}
	p.mu.Unlock()
}

// event is one call of a Handler.
type event struct {
	kind      eventKind
	why       duplex.RefuseReason
	buf       []byte
	seq       uint64
	streamSeq uint64
}

type eventKind uint8

const (
	eventFrame eventKind = iota + 1
	eventControl
	eventStored
	eventRefused
)

func (e event) to(h duplex.Handler) {
	switch e.kind {
	case eventFrame:
		h.Frame(e.buf)
	case eventControl:
		h.ControlMessage(e.buf)
	case eventStored:
		h.Stored(e.seq, e.streamSeq)
	case eventRefused:
		h.Refused(e.seq, e.why)
	}
}

// nobody is the handler of a closed port.
type nobody struct{}

func (nobody) Frame([]byte)                        {}
func (nobody) ControlMessage([]byte)               {}
func (nobody) Stored(uint64, uint64)               {}
func (nobody) Refused(uint64, duplex.RefuseReason) {}
