package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// frameOf is a frame as its sender stores it.
func frameOf(key wire.Key, dir subjects.Dir, f wire.Frame) []byte {
	buf := append(make([]byte, wire.HeaderSize), f.Payload...)
	return wire.NewFrameKey(key, dir).Seal(buf, f)
}

// got is what answered one replay.
type gotReplay struct {
	frames     [][]byte
	seqs       []uint64
	next, last uint64
}

// replay asks and gathers every message of the answer.
func (r *rig) replay(subject string, req any) (got gotReplay, err error) {
	r.t.Helper()
	inbox := r.nc.NewInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := r.nc.PublishRequest(subject, inbox, wire.Encode(req)); err != nil {
		r.t.Fatal(err)
	}
	number := func(m *nats.Msg, key string) uint64 {
		n, err := strconv.ParseUint(m.Header.Get(key), 10, 64)
		if err != nil || len(m.Header[key]) != 1 {
			r.t.Fatalf("%s: %v", key, m.Header)
		}
		return n
	}
	for {
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			r.t.Fatal(err)
		}
		switch {
		case m.Header.Get(micro.ErrorCodeHeader) != "":
			var e wire.Error
			if err := json.Unmarshal(m.Data, &e); err != nil {
				r.t.Fatal(err)
			}
			return got, &e
		case m.Header.Get("Status") != "":
			if m.Header.Get("Status") != "204" || len(m.Data) != 0 || len(m.Header) != 3 {
				r.t.Fatalf("the end is %v %q", m.Header, m.Data)
			}
			got.next, got.last = number(m, wire.HeaderNextStreamSeq), number(m, wire.HeaderLastFrameSeq)
			return got, nil
		}
		if len(m.Header) != 1 {
			r.t.Errorf("headers of a frame: %v", m.Header)
		}
		got.frames, got.seqs = append(got.frames, m.Data), append(got.seqs, number(m, wire.HeaderStreamSeq))
	}
}

func (r *rig) mustReplay(subject string, req any) gotReplay {
	r.t.Helper()
	got, err := r.replay(subject, req)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func (r *rig) store(subject string, data []byte, header ...string) {
	r.t.Helper()
	msg := nats.NewMsg(subject)
	msg.Data = data
	for i := 0; i < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	if _, err := r.js().PublishMsg(r.t.Context(), msg); err != nil {
		r.t.Fatal(err)
	}
}

func dataOf(l wire.Lease, id uuid.UUID, dir subjects.Dir) string {
	return subjects.Channel{Tenant: l.Tenant, Route: l.Route, Lease: l.ID, Channel: id.String()}.Data(dir)
}

func TestReplayCopiesTheLog(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	noise, _ := r.opened(d, l)
	ask := wire.ReplayRequest{Lease: l.ID, Channel: req.Channel, Direction: "down", MaxBytes: wire.MaxReplay}
	if got := r.mustReplay(subjects.Replay("default"), ask); len(got.frames) != 0 || got.next != 0 || got.last != 0 {
		t.Fatalf("of an empty log: %+v", got)
	}
	var want [][]byte
	for i := range 300 {
		f := wire.Frame{Type: wire.FrameStdout, Epoch: l.Epoch.N, Seq: uint64(i + 1), Offset: uint64(3 * i), Payload: fmt.Appendf(nil, "%03d", i)}
		want = append(want, frameOf(wire.KeyDown(secret), subjects.Down, f))
		r.store(dataOf(l, req.Channel, subjects.Down), want[i])
		r.store(dataOf(l, noise.Channel, subjects.Down), want[i])
	}
	got := r.mustReplay(subjects.Replay("default"), ask)
	want = want[300-logRing:]
	if len(got.frames) != logRing || got.last != 300 || got.next != got.seqs[logRing-1]+1 {
		t.Fatalf("%d frames, last %d, next %d", len(got.frames), got.last, got.next)
	}
	for i := range want {
		if !bytes.Equal(got.frames[i], want[i]) {
			t.Fatalf("frame %d is not as it was stored", i)
		}
	}
	// From the end: nothing, and it stays there.
	ask.FromStreamSeq = got.next
	if end := r.mustReplay(subjects.Replay("default"), ask); len(end.frames) != 0 || end.next != got.next || end.last != 300 {
		t.Fatalf("at the end: %+v", end)
	}
	ask.FromStreamSeq = 1<<63 - 1
	if end := r.mustReplay(subjects.Replay("default"), ask); len(end.frames) != 0 {
		t.Fatalf("beyond the end: %d frames", len(end.frames))
	}
	// In parts, bounded by bytes; one frame at least.
	ask.FromStreamSeq = 0
	for _, limit := range []int{1, len(want[0]), 5*len(want[0]) + 1} {
		ask.MaxBytes, ask.FromStreamSeq = limit, 0
		n := 0
		for {
			part := r.mustReplay(subjects.Replay("default"), ask)
			if len(part.frames) == 0 {
				break
			}
			if most := max(1, limit/len(want[0])); len(part.frames) > most {
				t.Fatalf("%d frames for %d bytes", len(part.frames), limit)
			}
			for _, f := range part.frames {
				if !bytes.Equal(f, want[n]) {
					t.Fatalf("frame %d is not as it was stored", n)
				}
				n++
			}
			ask.FromStreamSeq = part.next
		}
		if n != logRing {
			t.Fatalf("%d frames in parts of %d bytes", n, limit)
		}
	}
}

func TestReplayOfFullFramesStaysWithinItsBytes(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	for i := range 40 {
		f := wire.Frame{Type: wire.FrameStdin, Attach: 1, Epoch: l.Epoch.N, Seq: uint64(i + 1), Offset: uint64(i) * wire.MaxPayload, Payload: make([]byte, wire.MaxPayload)}
		r.store(dataOf(l, req.Channel, subjects.Up), frameOf(wire.KeyUp(secret, 1), subjects.Up, f))
	}
	ask := wire.ReplayRequest{Lease: l.ID, Channel: req.Channel, Direction: "up", MaxBytes: wire.MaxReplay}
	got := r.mustReplay(subjects.ToCoordinator("w1", subjects.WRReplay), ask)
	if len(got.frames) != wire.MaxReplay/wire.MaxFrame || got.last != 40 {
		t.Fatalf("%d frames, last %d", len(got.frames), got.last)
	}
}

// Whoever may publish chooses the headers that a frame is stored with.
func TestS012_StoredHeadersNeitherConfuseNorComeOut(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	subject := dataOf(l, req.Channel, subjects.Up)
	var want [][]byte
	for i := range 3 {
		want = append(want, frameOf(wire.KeyUp(secret, 1), subjects.Up, wire.Frame{Type: wire.FrameStdin, Attach: 1, Epoch: l.Epoch.N, Seq: uint64(i + 1), Offset: uint64(i), Payload: []byte("x")}))
		r.store(subject, want[i], "Status", "204", "Nats-Sequence", "77", "Nats-Subject", "other", "Nats-Num-Pending", "0",
			wire.HeaderNextStreamSeq, "9", wire.HeaderStreamSeq, "9", micro.ErrorCodeHeader, "INTERNAL")
	}
	r.store(subject, nil, "Status", "404") // a message that is no frame
	got := r.mustReplay(subjects.Replay("default"), wire.ReplayRequest{Lease: l.ID, Channel: req.Channel, Direction: "up", MaxBytes: wire.MaxReplay})
	if len(got.frames) != 4 || got.seqs[0] != 1 || got.next != 5 || got.last != 0 {
		t.Fatalf("%d frames %v, next %d, last %d", len(got.frames), got.seqs, got.next, got.last)
	}
	for i := range want {
		if !bytes.Equal(got.frames[i], want[i]) {
			t.Fatalf("frame %d is not as it was stored", i)
		}
	}
}

func TestReplayIsForWhoseChannelItIs(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	r.store(dataOf(l, req.Channel, subjects.Up), frameOf(wire.KeyUp(secret, 1), subjects.Up, wire.Frame{Type: wire.FrameStdin, Attach: 1, Epoch: l.Epoch.N, Seq: 1, Payload: []byte("x")}))
	r.double("w2")
	own, other := subjects.ToCoordinator("w1", subjects.WRReplay), subjects.ToCoordinator("w2", subjects.WRReplay)
	good := wire.ReplayRequest{Lease: l.ID, Channel: req.Channel, Direction: "up", MaxBytes: 100}
	for _, s := range []string{own, subjects.Replay("default")} {
		if got := r.mustReplay(s, good); len(got.frames) != 1 || got.last != 1 {
			t.Errorf("%s: %+v", s, got)
		}
	}
	change := func(f func(*wire.ReplayRequest)) wire.ReplayRequest {
		q := good
		f(&q)
		return q
	}
	unknown := change(func(q *wire.ReplayRequest) { q.Channel = uuid.New() })
	texts := map[string]bool{}
	for _, c := range []struct {
		subject string
		req     wire.ReplayRequest
		want    wire.Code
	}{
		{subjects.Replay("other"), good, wire.CodeNotFound},
		{subjects.Replay("other"), unknown, wire.CodeNotFound},
		{subjects.Replay("default"), change(func(q *wire.ReplayRequest) { q.Lease = uuid.NewString() }), wire.CodeNotFound},
		{other, good, wire.CodeNotFound},
		{other, unknown, wire.CodeNotFound},
		{own, unknown, wire.CodeNotFound},
		{own, change(func(q *wire.ReplayRequest) { q.Direction = "down" }), wire.CodeInvalidArgument},
		{own, change(func(q *wire.ReplayRequest) { q.Direction = "" }), wire.CodeInvalidArgument},
		{own, change(func(q *wire.ReplayRequest) { q.MaxBytes = 0 }), wire.CodeInvalidArgument},
		{own, change(func(q *wire.ReplayRequest) { q.MaxBytes = -1 }), wire.CodeInvalidArgument},
		{own, change(func(q *wire.ReplayRequest) { q.MaxBytes = wire.MaxReplay + 1 }), wire.CodeInvalidArgument},
		{subjects.Replay("default"), change(func(q *wire.ReplayRequest) { q.Direction = "sideways" }), wire.CodeInvalidArgument},
	} {
		_, err := r.replay(c.subject, c.req)
		if wire.CodeOf(err) != c.want {
			t.Errorf("%s %+v: %v, want %s", c.subject, c.req, err, c.want)
		}
		if c.want == wire.CodeNotFound {
			texts[err.Error()] = true
		}
	}
	if len(texts) != 1 {
		t.Errorf("unknown and foreign can be told apart: %v", texts)
	}
	// A log that is away for a moment is not an empty one.
	if err := r.js().DeleteStream(t.Context(), subjects.LogStream("default", 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.replay(own, good); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("without a log: %v", err)
	}
}

// What decides is read from the leader, though direct gets are allowed, and by
// the message that the server names rather than by its headers.
func TestLastFrameOfALog(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	subject := subjects.Channel{Tenant: "default", Route: "r1", Lease: uuid.NewString(), Channel: uuid.NewString()}.Data(subjects.Down)
	if m, err := p.logs.last(t.Context(), "default", subject); m != nil || err != nil {
		t.Fatalf("of nothing: %v %v", m, err)
	}
	r.store(subject, []byte("a"))
	r.store(subject, []byte("b"), "Nats-Sequence", "77", "Status", "404")
	m, err := p.logs.last(t.Context(), "default", subject)
	if err != nil || m == nil || m.Seq != 2 || string(m.Data) != "b" {
		t.Fatalf("%+v %v", m, err)
	}
	if err := r.js().DeleteStream(t.Context(), subjects.LogStream("default", 0)); err != nil {
		t.Fatal(err)
	}
	if m, err := p.logs.last(t.Context(), "default", subject); m != nil || err != nil {
		t.Fatalf("without a log: %v %v", m, err)
	}
	if _, err := r.js().Stream(t.Context(), subjects.LogStream("default", 0)); err == nil {
		t.Fatal(jetstream.ErrStreamNotFound)
	}
}
