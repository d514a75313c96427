// Package linktest joins two duplex ends in memory: through a log that acks and
// republishes like JetStream, and a control path, each with seeded faults. It is
// for tests inside a synctest bubble, where its delays are virtual.
package linktest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/wire"
)

// Faults are probabilities (0 to 1) per message and delays.
type Faults struct {
	Seed        uint64
	Delay       time.Duration // of every hop
	Jitter      time.Duration // added at random: reorders
	DropLive    float64       // the republished copy is lost
	DropAck     float64       // the store ack is lost
	DropStore   float64       // the publish never reaches the log
	Refuse      float64       // the log refuses
	DupLive     float64       // the republished copy comes twice
	DropControl float64
	DupControl  float64
}

// Net is a pair of ends and what lies between them.
type Net struct {
	Client, Worker *duplex.End
	resumer        *duplex.Resumer
	clients        []*duplex.End // every client there was: all hear what the worker sends
	window         uint64
	mu             sync.Mutex
	rnd            *rand.Rand
	faults         Faults
	cut            bool
	refuse         bool
	seq            uint64
	stores         int
	controls       int
	tap            func(from duplex.Side, control bool, msg []byte)
}

// Config is what a test may set of the two ends.
type Config struct {
	Faults
	Window         uint64
	ClientReadable func(wire.Stream)
	WorkerReadable func(wire.Stream)
	Request        func(wire.Request) wire.Answer
	Failed         func(duplex.Side, *wire.Error)
	Stall          time.Duration
	Pool           *duplex.Pool // the worker's
	// Tap sees every message before its faults.
	Tap func(from duplex.Side, control bool, msg []byte)
	// HoldStart leaves the ends unstarted; call Start.
	HoldStart bool
}

// New joins two fresh ends and starts them.
func New(cfg Config) *Net {
	n := &Net{window: cfg.Window, rnd: rand.New(rand.NewPCG(cfg.Seed, 1)), faults: cfg.Faults, tap: cfg.Tap}
	id := uuid.UUID{15: 1}
	make := func(side duplex.Side, readable func(wire.Stream)) (e *duplex.End) {
		c := duplex.Config{Side: side, Channel: id, Epoch: 7, Link: link{n, side, func() *duplex.End { return e }}, Window: cfg.Window, Readable: readable, Stall: cfg.Stall}
		if side == duplex.Worker {
			c.Request, c.Pool = cfg.Request, cfg.Pool
			c.NextKey = func(attach uint32) wire.Key { return wire.KeyUp(secret, attach) }
		}
		if cfg.Failed != nil {
			c.Failed = func(e *wire.Error) { cfg.Failed(side, e) }
		}
		e = duplex.New(c)
		return e
	}
	n.Client = make(duplex.Client, cfg.ClientReadable)
	n.clients = []*duplex.End{n.Client}
	n.Worker = make(duplex.Worker, cfg.WorkerReadable)
	if !cfg.HoldStart {
		n.StartWorker()
		n.StartClient()
	}
	return n
}

var secret = bytes.Repeat([]byte{9}, wire.SecretSize)

func (n *Net) grant(peer *duplex.End) duplex.Grant {
	limit, frames := peer.Credit()
	return duplex.Grant{
		Attach: 1, KeyUp: wire.KeyUp(secret, 1), KeyDown: wire.KeyDown(secret),
		Credit: [4]uint64{0, limit, limit, limit}, Frames: frames,
	}
}

// StartWorker gives the worker's end its keys and the client's credit.
func (n *Net) StartWorker() { n.Worker.Start(n.grant(n.Client)) }

// StartClient gives the client's end its keys and the worker's credit.
func (n *Net) StartClient() { n.Client.Start(n.grant(n.Worker)) }

// Attach makes a new client the holder, as a coordinator would, and returns it;
// from is as in duplex.End.Attach. The old client still hears and may still send.
func (n *Net) Attach(from *wire.Offsets) (*duplex.End, error) {
	var next *duplex.End
	next = duplex.New(duplex.Config{
		Side: duplex.Client, Channel: uuid.UUID{15: 1}, Epoch: 7, Window: n.window,
		Link: link{n, duplex.Client, func() *duplex.End { return next }},
	})
	n.mu.Lock()
	n.Client = next
	n.clients = append(n.clients, next)
	n.mu.Unlock()
	attach := n.Worker.AttachNumber() + 1
	window, frames := next.Credit()
	up, down, err := n.Worker.Attach(attach, wire.KeyUp(secret, attach), from,
		wire.DownCredit{Stdout: window, Stderr: window, FrameLimit: frames})
	if err != nil {
		return nil, err
	}
	next.Start(duplex.Grant{
		Attach: attach, KeyUp: wire.KeyUp(secret, attach), KeyDown: wire.KeyDown(secret),
		Credit: [4]uint64{wire.Stdin: up.Limit}, Frames: up.FrameLimit,
		Resume: &duplex.Resume{Up: up, Down: down},
	})
	return next, nil
}

// Resume makes a new client the holder with the saved key of attach, as a process
// that came back would.
func (n *Net) Resume(ctx context.Context, attach uint32, from *wire.Offsets) (*duplex.End, error) {
	id := uuid.UUID{15: 1}
	var r *duplex.Resumer
	var next *duplex.End
	l := link{n, duplex.Client, func() *duplex.End { return next }}
	r = duplex.NewResumer(l, id, attach, wire.KeyUp(secret, attach), wire.KeyDown(secret))
	next = duplex.New(duplex.Config{Side: duplex.Client, Channel: id, Epoch: 7, Window: n.window, Link: l})
	n.mu.Lock()
	n.resumer = r
	n.mu.Unlock()
	window, frames := next.Credit()
	a, err := r.Run(ctx, from, wire.DownCredit{Stdout: window, Stderr: window, FrameLimit: frames})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.Client = next
	n.clients = append(n.clients, next)
	n.mu.Unlock()
	next.Start(duplex.Grant{
		Attach: a.Attach, KeyUp: wire.Key(a.KeyUp), KeyDown: wire.Key(a.KeyDown),
		Credit: [4]uint64{wire.Stdin: a.Up.Limit}, Frames: a.Up.FrameLimit,
		Resume: &duplex.Resume{Up: a.Up, Down: a.Down},
	})
	return next, nil
}

// Keys of the pair, for tests that forge.
func (n *Net) Keys() (up, down wire.Key) { return wire.KeyUp(secret, 1), wire.KeyDown(secret) }

// Cut loses every message from now on, or stops losing them.
func (n *Net) Cut(on bool) { n.mu.Lock(); n.cut = on; n.mu.Unlock() }

// Refuse makes the log refuse every store from now on, or accept again.
func (n *Net) Refuse(on bool) { n.mu.Lock(); n.refuse = on; n.mu.Unlock() }

// LoseLog makes the log start again from sequence 0.
func (n *Net) LoseLog() { n.mu.Lock(); n.seq = 0; n.mu.Unlock() }

// Stores and Controls count the messages so far.
func (n *Net) Counts() (stores, controls int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stores, n.controls
}

// SetFaults replaces the faults (not the seed).
func (n *Net) SetFaults(f Faults) { n.mu.Lock(); n.faults = f; n.mu.Unlock() }

type link struct {
	n    *Net
	side duplex.Side
	me   func() *duplex.End // who gets the answers of the log
}

// peers are the ends that hear what this side sends.
func (l link) peers() (hs []duplex.Handler) {
	if l.side == duplex.Client {
		return []duplex.Handler{l.n.Worker}
	}
	for _, c := range l.n.clients {
		hs = append(hs, c)
	}
	if l.n.resumer != nil {
		hs = append(hs, l.n.resumer)
	}
	return hs
}

func (l link) Store(id uint64, frame []byte) error {
	n := l.n
	me := l.me()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stores++
	if n.tap != nil {
		n.tap(l.side, false, frame)
	}
	switch {
	case n.lost(n.faults.DropStore):
		return nil
	case n.refuse || n.hit(n.faults.Refuse):
		n.after(func() { me.Refused(id, duplex.RefusedFull) })
		return nil
	}
	n.seq++
	streamSeq := n.seq
	if !n.lost(n.faults.DropAck) {
		n.after(func() { me.Stored(id, streamSeq) })
	}
	for _, peer := range l.peers() {
		for range n.copies(n.faults.DropLive, n.faults.DupLive) {
			buf := bytes.Clone(frame)
			n.after(func() { peer.Frame(buf) })
		}
	}
	return nil
}

func (l link) Control(msg []byte) error {
	n := l.n
	n.mu.Lock()
	defer n.mu.Unlock()
	n.controls++
	if n.tap != nil {
		n.tap(l.side, true, msg)
	}
	for _, peer := range l.peers() {
		for range n.copies(n.faults.DropControl, n.faults.DupControl) {
			buf := bytes.Clone(msg)
			n.after(func() { peer.ControlMessage(buf) })
		}
	}
	return nil
}

func (n *Net) hit(p float64) bool  { return p > 0 && n.rnd.Float64() < p }
func (n *Net) lost(p float64) bool { return n.cut || n.hit(p) }

func (n *Net) copies(drop, dup float64) int {
	switch {
	case n.lost(drop):
		return 0
	case n.hit(dup):
		return 2
	}
	return 1
}

func (n *Net) after(f func()) {
	d := n.faults.Delay
	if n.faults.Jitter > 0 {
		d += time.Duration(n.rnd.Int64N(int64(n.faults.Jitter)))
	}
	time.AfterFunc(d, f)
}
