package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

const (
	testLease = "0f5c1c2e-6b1f-5c3b-9c51-0d5f8f6a0001"
	testRoute = "abcdefghijklmnopqrstuvwxyz"
)

// double is a fabric in memory, fit for a synctest bubble: coordinators that
// answer as the test says, and one worker end per channel.
type double struct {
	t testing.TB

	mu        sync.Mutex
	up        bool
	seen      []string // verbs asked for, in order
	answers   map[string]answer
	ports     map[string]*memPort
	workers   map[string]*duplex.End
	opened    map[string][]byte // exec bodies by channel
	log       [][]byte          // frames of all workers; replays read it if that is answered
	keepalive answer
	// script is run with the worker's end of every channel, before the answer.
	script func(w *duplex.End, exec *wire.Exec) *wire.Outcome
	// filter reports whether a message to the client gets through.
	filter func(kind string, buf []byte) bool
}

type answer func(ctx context.Context, body []byte) ([]byte, error)

func newDouble(t testing.TB) *double {
	d := &double{
		t: t, up: true, answers: map[string]answer{}, ports: map[string]*memPort{},
		workers: map[string]*duplex.End{}, opened: map[string][]byte{},
	}
	info := wire.Lease{ID: testLease, State: "active", Route: testRoute, TTLMS: 30_000, Epoch: wire.Epoch{Incarnation: "i", N: 7}}
	lease := func(context.Context, []byte) ([]byte, error) { return wire.Encode(wire.LeaseReply{Lease: info}), nil }
	for _, verb := range []string{subjects.APIAcquire, subjects.APIGet, subjects.APIRenew, subjects.APIRelease} {
		d.answers[verb] = lease
	}
	d.answers[subjects.APIOpen] = d.open
	d.answers[subjects.APIExecute] = d.open
	d.answers[subjects.APIKill] = func(context.Context, []byte) ([]byte, error) { return wire.Encode(wire.ChannelReply{}), nil }
	d.keepalive = d.answerProbes
	return d
}

// client is a Client on the double; it is closed with the test.
func (d *double) client(o Options) *Client {
	d.t.Helper()
	c, err := newClient(o)
	if err != nil {
		d.t.Fatal(err)
	}
	c.bus = d
	d.t.Cleanup(c.Close)
	return c
}

// lease is a lease on the double that nothing renews.
func (d *double) lease(c *Client) *Lease {
	d.t.Helper()
	l, err := c.GetLease(context.Background(), testLease)
	if err != nil {
		d.t.Fatal(err)
	}
	return l
}

func (d *double) set(verb string, a answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[verb] = a
}

func (d *double) setKeepalive(a answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keepalive = a
}

func (d *double) asked(verb string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.seen {
		if v == verb {
			n++
		}
	}
	return n
}

func (d *double) Request(ctx context.Context, subject string, data []byte) ([]byte, error) {
	s, err := subjects.Parse(subject)
	if err != nil {
		d.t.Errorf("request on %q: %v", subject, err)
		return nil, wire.Errorf(wire.CodeInvalidArgument, "%v", err)
	}
	verb := s.Verb
	if s.Kind == subjects.KindControl {
		verb = subjects.Keepalive
	}
	d.mu.Lock()
	d.seen = append(d.seen, verb)
	a := d.answers[verb]
	if verb == subjects.Keepalive {
		a = d.keepalive
	}
	d.mu.Unlock()
	if a == nil {
		return noResponders(ctx, nil)
	}
	b, err := a(ctx, data)
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("%w (%w)", wire.Errorf(wire.CodeDeadlineExceeded, "no answer"), context.DeadlineExceeded)
	}
	return b, err
}

// RequestMany answers replays with the log of the test.
func (d *double) RequestMany(ctx context.Context, subject string, data []byte, next func([]byte, func(string) string) bool) error {
	if _, err := d.Request(ctx, subject, data); err != nil {
		return err
	}
	var req wire.ReplayRequest
	if err := wire.DecodeStrict(data, wire.MaxControlBody, &req); err != nil {
		return err
	}
	d.mu.Lock()
	log := d.log
	d.mu.Unlock()
	none := func(string) string { return "" }
	for req.FromStreamSeq < uint64(len(log)) {
		if !next(slices.Clone(log[req.FromStreamSeq]), none) {
			return nil
		}
		req.FromStreamSeq++
	}
	next(nil, func(h string) string {
		if h == wire.HeaderNextStreamSeq {
			return fmt.Sprint(req.FromStreamSeq)
		}
		return ""
	})
	return nil
}

func noResponders(context.Context, []byte) ([]byte, error) {
	return nil, fmt.Errorf("%w (%w)", wire.Errorf(wire.CodeUnavailable, "nobody"), natsbus.ErrNoResponders)
}

// silence does not answer.
func silence(ctx context.Context, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func refuse(code wire.Code) answer {
	return func(context.Context, []byte) ([]byte, error) { return nil, wire.Errorf(code, "refused by the test") }
}

func (d *double) Up() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.up
}

func (d *double) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.up = false
	for _, w := range d.workers {
		w.Close()
	}
}

func (d *double) Open(ch subjects.Channel) (port, error) {
	if err := ch.Check(); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "%v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &memPort{d: d, id: ch.Channel}
	d.ports[ch.Channel] = p
	return p, nil
}

func (d *double) openPorts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ports)
}

func secretFor(channel string) []byte { return slices.Repeat([]byte(channel[:4]), wire.SecretSize/4) }

func secretOf(c *Channel) []byte { return secretFor(c.ID()) }

// open answers api open and execute; a repeat names the same channel.
func (d *double) open(_ context.Context, body []byte) ([]byte, error) {
	var req wire.OpenRequest
	if err := wire.DecodeStrict(body, wire.MaxOpenBody, &req); err != nil {
		return nil, err
	}
	exec, err := wire.DecodeExec(req.Body)
	if err != nil {
		return nil, err
	}
	id := req.Channel.String()
	secret := secretFor(id)
	reply := wire.OpenReply{
		Channel: req.Channel, Attach: 1, Route: testRoute, Instance: "i", Epoch: req.Epoch.N,
		Credit: wire.UpCredit{Stdin: duplex.DefaultWindow, FrameLimit: duplex.FrameWindow},
	}
	up, down := wire.KeyUp(secret, 1), wire.KeyDown(secret)
	reply.KeyUp, reply.KeyDown = up[:], down[:]
	d.mu.Lock()
	_, repeat := d.opened[id]
	d.opened[id] = req.Body
	p := d.ports[id]
	d.mu.Unlock()
	if repeat {
		return wire.Encode(reply), nil
	}
	w := duplex.New(duplex.Config{
		Side: duplex.Worker, Channel: req.Channel, Epoch: req.Epoch.N, Link: workerLink{p},
		Request: func(wire.Request) wire.Answer { return wire.Answer{} },
	})
	p.mu.Lock()
	p.worker = w
	p.mu.Unlock()
	d.mu.Lock()
	d.workers[id] = w
	script := d.script
	d.mu.Unlock()
	w.Start(duplex.Grant{
		Attach: 1, KeyUp: up, KeyDown: down, Frames: req.Credit.FrameLimit,
		Credit: [4]uint64{wire.Stdout: req.Credit.Stdout, wire.Stderr: req.Credit.Stderr},
	})
	if script != nil {
		reply.Outcome = script(w, exec)
	}
	return wire.Encode(reply), nil
}

// answerProbes is the worker's answer to a keepalive.
func (d *double) answerProbes(_ context.Context, body []byte) ([]byte, error) {
	out := []byte{}
	for len(body) > 0 {
		msg, rest, err := wire.SplitKeepalive(body)
		if err != nil {
			return nil, err
		}
		body = rest
		id, _, _ := wire.PeekChannel(msg)
		d.mu.Lock()
		w := d.workers[id.String()]
		d.mu.Unlock()
		if w == nil {
			out = wire.AppendGone(out, id)
		} else {
			out = w.AnswerProbe(out, msg)
		}
	}
	return out, nil
}

// forget makes the worker not know its channels any more.
func (d *double) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, w := range d.workers {
		w.Close()
		delete(d.workers, id)
	}
}

// recorded answers api channel with an end.
func recorded(o wire.Outcome, t *wire.Totals) answer {
	return func(_ context.Context, body []byte) ([]byte, error) {
		var req wire.ChannelRequest
		if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
			return nil, err
		}
		return wire.Encode(wire.ChannelReply{Channel: wire.Channel{ID: req.Channel, State: "ended", Outcome: &o, Totals: t}}), nil
	}
}

// memPort is the client's end of a channel in memory.
type memPort struct {
	d  *double
	id string

	mu      sync.Mutex
	handler duplex.Handler
	worker  *duplex.End
	early   []func(duplex.Handler)
	streams uint64
	closed  bool
}

func (p *memPort) Bind(h duplex.Handler) {
	p.mu.Lock()
	p.handler = h
	early := p.early
	p.early = nil
	p.mu.Unlock()
	for _, f := range early {
		f(h)
	}
}

func (p *memPort) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.ports[p.id] == p {
		delete(p.d.ports, p.id)
	}
}

func (p *memPort) peer() *duplex.End {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.worker
}

func (p *memPort) toClient(f func(duplex.Handler)) {
	p.mu.Lock()
	h, closed := p.handler, p.closed
	if h == nil {
		p.early = append(p.early, f)
	}
	p.mu.Unlock()
	if h != nil && !closed {
		f(h)
	}
}

func (p *memPort) stored() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams++
	return p.streams
}

func (p *memPort) Store(id uint64, frame []byte) error {
	n := p.stored()
	p.toClient(func(h duplex.Handler) { h.Stored(id, n) })
	if w := p.peer(); w != nil {
		w.Frame(slices.Clone(frame))
	}
	return nil
}

func (p *memPort) Control(msg []byte) error {
	if w := p.peer(); w != nil {
		w.ControlMessage(slices.Clone(msg))
	}
	return nil
}

// workerLink is the other direction.
type workerLink struct{ p *memPort }

func (l workerLink) passes(kind string, buf []byte) bool {
	l.p.d.mu.Lock()
	f := l.p.d.filter
	l.p.d.mu.Unlock()
	return f == nil || f(kind, buf)
}

func (l workerLink) Store(id uint64, frame []byte) error {
	if w := l.p.peer(); w != nil {
		w.Stored(id, l.p.stored())
	}
	l.p.d.mu.Lock()
	l.p.d.log = append(l.p.d.log, slices.Clone(frame))
	l.p.d.mu.Unlock()
	if l.passes("frame", frame) {
		frame = slices.Clone(frame)
		l.p.toClient(func(h duplex.Handler) { h.Frame(frame) })
	}
	return nil
}

func (l workerLink) Control(msg []byte) error {
	if l.passes("control", msg) {
		msg = slices.Clone(msg)
		l.p.toClient(func(h duplex.Handler) { h.ControlMessage(msg) })
	}
	return nil
}

// say writes to an output stream of a worker's end.
func say(t testing.TB, w *duplex.End, st wire.Stream, text string) {
	t.Helper()
	if n, err := w.Write(context.Background(), st, []byte(text)); err != nil || n != len(text) {
		t.Errorf("worker writes %d of %d bytes: %v", n, len(text), err)
	}
}

// notices collects what OnNotice is told.
type notices struct {
	mu  sync.Mutex
	all []Notice
}

func (n *notices) add(x Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, x)
}

func (n *notices) kinds() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, x := range n.all {
		out = append(out, string(x.Kind))
	}
	return strings.Join(out, " ")
}

func isV4(s string) bool {
	id, err := uuid.Parse(s)
	return err == nil && id.Version() == 4
}
