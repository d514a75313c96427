package natsbus_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestStoreAckRepublish(t *testing.T) {
	p := newPair(t)
	big := strings.Repeat("x", wire.MaxFrame)
	for _, d := range []struct {
		name      string
		from      *natsbus.Port
		at, other *recorder
	}{{"down", p.down, p.onWorker, p.onClient}, {"up", p.up, p.onClient, p.onWorker}} {
		t.Run(d.name, func(t *testing.T) {
			var last uint64
			for seq, frame := range []string{1: "one", 2: "two", 3: big} {
				if seq == 0 {
					continue
				}
				store(t, d.from, uint64(seq), frame)
				d.other.want(t, call{kind: "frame", data: frame})
				got := d.at.next(t)
				if got.kind != "stored" || got.seq != uint64(seq) || got.streamSeq <= last {
					t.Fatalf("the sender got %+v, want stored %d with a stream sequence over %d", got, seq, last)
				}
				last = got.streamSeq
			}
			if err := d.from.Control([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			d.other.want(t, call{kind: "control", data: "hello"})
		})
	}
}

func TestManyChannelsDoNotMix(t *testing.T) {
	p := newPair(t)
	const n = 50
	type end struct {
		up, down           *natsbus.Port
		onClient, onWorker *recorder
	}
	ends := make([]end, n)
	for i := range ends {
		ch := newChannel()
		e := end{open(t, p.client, ch), open(t, p.worker, ch), newRecorder(), newRecorder()}
		e.up.Bind(e.onClient)
		e.down.Bind(e.onWorker)
		ends[i] = e
	}
	p.flush(t)
	for i, e := range ends {
		store(t, e.down, 7, fmt.Sprint("down", i))
		store(t, e.up, 9, fmt.Sprint("up", i))
	}
	for i, e := range ends {
		for _, r := range []struct {
			rec   *recorder
			frame string
			seq   uint64
		}{{e.onClient, fmt.Sprint("down", i), 9}, {e.onWorker, fmt.Sprint("up", i), 7}} {
			for range 2 {
				got := r.rec.next(t)
				if got.kind == "frame" && got.data != r.frame || got.kind == "stored" && got.seq != r.seq {
					t.Fatalf("channel %d got %+v", i, got)
				}
			}
		}
	}
}

func TestEarlyMessagesAreKeptInOrder(t *testing.T) {
	p := newPair(t)
	ch := newChannel()
	up, down := open(t, p.client, ch), open(t, p.worker, ch)
	down.Bind(newRecorder())
	p.flush(t)
	const sent, kept = 100, 80
	for i := range sent {
		if err := down.Control(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	// A message of the bound channel behind them says that they have all come.
	if err := p.down.Control([]byte("behind")); err != nil {
		t.Fatal(err)
	}
	p.onClient.want(t, call{kind: "control", data: "behind"})
	rec := newRecorder()
	up.Bind(rec)
	if err := down.Control([]byte("after")); err != nil {
		t.Fatal(err)
	}
	for i := range kept {
		rec.want(t, call{kind: "control", data: fmt.Sprint(i)})
	}
	rec.want(t, call{kind: "control", data: "after"})
	if got := p.clientConn.Counters().DroppedEarly; got != sent-kept {
		t.Errorf("DroppedEarly = %d, want %d", got, sent-kept)
	}
}

func TestBindWhileMessagesCome(t *testing.T) {
	p := newPair(t)
	ch := newChannel()
	up, down := open(t, p.client, ch), open(t, p.worker, ch)
	p.flush(t)
	const n = 60 // fewer than a port keeps, so that none may be missing
	go func() {
		for i := range n {
			_ = down.Control(fmt.Append(nil, i))
		}
	}()
	rec := newRecorder()
	up.Bind(rec)
	for i := range n {
		rec.want(t, call{kind: "control", data: fmt.Sprint(i)})
	}
}

// TestF21_OnlyRepublishedFramesCount covers reply injection: acks and stored
// messages that somebody directs at a channel, and forged live messages.
func TestF21_OnlyRepublishedFramesCount(t *testing.T) {
	p := newPair(t)
	nc := p.srv.Connect(t)
	live, data := p.ch.Live(subjects.Down), p.ch.Data(subjects.Down)
	js := func(subject ...string) nats.Header {
		return nats.Header{"Nats-Stream": {"S"}, "Nats-Subject": subject, "Nats-Sequence": {"1"}}
	}
	noSeq := js(data)
	delete(noSeq, "Nats-Sequence")
	forged := []*nats.Msg{
		{Subject: live, Data: []byte("no headers")},
		{Subject: live, Data: []byte("another subject"), Header: js(p.ch.Data(subjects.Up))},
		{Subject: live, Data: []byte("two subjects"), Header: js("x", data)},
		{Subject: live, Data: []byte("no sequence"), Header: noSeq},
		// Through the log, but with headers of its own under JetStream's names.
		{Subject: data, Data: []byte("own headers"), Header: nats.Header{"Nats-Subject": {"y"}}},
	}
	control := []*nats.Msg{
		{Subject: p.ch.Control(subjects.Down), Data: []byte("stored"), Header: js(data)},
		{Subject: p.ch.Control(subjects.Down), Data: []byte("sequence"), Header: nats.Header{"Nats-Sequence": {"4"}}},
	}
	for _, m := range append(forged, control...) {
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	store(t, p.down, 1, "genuine")
	p.onClient.want(t, call{kind: "frame", data: "genuine"})
	if err := nc.PublishMsg(&nats.Msg{Subject: p.ch.Control(subjects.Down), Data: []byte("shared"),
		Header: nats.Header{"Nats-Request-Info": {"{}"}}}); err != nil {
		t.Fatal(err)
	}
	p.onClient.want(t, call{kind: "control", data: "shared"})
	c := p.clientConn.Counters()
	if c.DroppedNoJetStream != uint64(len(forged)) || c.DroppedControlJetStream != uint64(len(control)) {
		t.Errorf("counted %d live and %d control messages, want %d and %d",
			c.DroppedNoJetStream, c.DroppedControlJetStream, len(forged), len(control))
	}
}

func TestRefusals(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect(t)
	c := connect(t, options(srv))
	port := open(t, clientMux(t, c), newChannel())
	rec := newRecorder()
	port.Bind(rec)

	store(t, port, 5, "nobody stores this")
	rec.want(t, call{kind: "refused", seq: 5, why: duplex.RefusedNoResponders})

	makeLog(t, nc, tenant, 4096)
	store(t, port, 6, "small")
	if got := rec.next(t); got.kind != "stored" || got.seq != 6 {
		t.Fatalf("got %+v, want stored 6", got)
	}
	store(t, port, 7, strings.Repeat("x", 8192))
	rec.want(t, call{kind: "refused", seq: 7, why: duplex.RefusedFull})

	store(t, port, 8, strings.Repeat("x", 64<<10+513))
	rec.want(t, call{kind: "refused", seq: 8, why: duplex.RefusedOther})
	if got := c.Counters().BadAck; got != 0 {
		t.Errorf("BadAck = %d", got)
	}
}

func TestStrayAcksAreCounted(t *testing.T) {
	p := newPair(t)
	nc := p.srv.Connect(t)
	// Its reply subject is what a thief would have to guess; here it is read.
	sub, err := nc.SubscribeSync(p.ch.Data(subjects.Up))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	store(t, p.up, 1, "frame")
	msg, err := sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	p.onClient.next(t)
	inbox := strings.TrimSuffix(msg.Reply, ".1")
	for _, m := range []nats.Msg{
		{Subject: inbox + ".x", Data: []byte(`{"stream":"S","seq":1}`)},
		{Subject: msg.Reply, Data: []byte("no ack")},
		{Subject: msg.Reply},
		{Subject: inbox + ".99", Data: []byte(`{"stream":"S","seq":77}`)},
	} {
		if err := nc.PublishMsg(&m); err != nil {
			t.Fatal(err)
		}
	}
	p.onClient.want(t, call{kind: "stored", seq: 99, streamSeq: 77})
	if got := p.clientConn.Counters().BadAck; got != 3 {
		t.Errorf("BadAck = %d, want 3", got)
	}
}

func TestKeepalivesAndUnknownChannels(t *testing.T) {
	srv := natstest.Start(t)
	wc, cc := connect(t, options(srv)), connect(t, options(srv))
	type stranger struct {
		ch   subjects.Channel
		body string
	}
	strangers := make(chan stranger, 10)
	worker := workerMux(t, wc, func(ch subjects.Channel, b []byte) { strangers <- stranger{ch, string(b)} })
	worker.Keepalives(func(tenant, client string, body []byte, reply func([]byte)) {
		reply([]byte(tenant + " " + client + " " + string(body)))
	})
	if err := wc.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := cc.Request(t.Context(), subjects.KeepaliveUp(tenant, route, "c-1"), []byte("probes"))
	if err != nil || string(got) != "t1 c-1 probes" {
		t.Fatalf("keepalive: %q, %v", got, err)
	}

	ch := newChannel()
	up := open(t, clientMux(t, cc), ch)
	rec := newRecorder()
	up.Bind(rec)
	if err := up.Control([]byte("probe")); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, strangers); got.ch != ch || got.body != "probe" {
		t.Fatalf("unknown got %+v", got)
	}
	if err := worker.SendControl(ch, []byte("gone")); err != nil {
		t.Fatal(err)
	}
	rec.want(t, call{kind: "control", data: "gone"})
	if got := wc.Counters().DroppedUnknownChannel; got != 1 {
		t.Errorf("DroppedUnknownChannel = %d, want 1", got)
	}
}

func TestClosedPortHearsNothing(t *testing.T) {
	p := newPair(t)
	other := newChannel()
	up, down := open(t, p.client, other), open(t, p.worker, other)
	up.Bind(newRecorder())
	onOther := newRecorder()
	down.Bind(onOther)
	p.flush(t)

	p.down.Close()
	p.down.Close()
	store(t, p.up, 1, "late")
	if err := p.up.Control([]byte("late")); err != nil {
		t.Fatal(err)
	}
	store(t, up, 1, "behind")
	onOther.want(t, call{kind: "frame", data: "behind"})
	// Frames and control messages come on two subscriptions.
	if err := up.Control([]byte("behind")); err != nil {
		t.Fatal(err)
	}
	onOther.want(t, call{kind: "control", data: "behind"})
	select {
	case got := <-p.onWorker.calls:
		t.Fatalf("a closed port got %s", show(got))
	default:
	}
	// A new port of the same channel takes over.
	again := open(t, p.worker, p.ch)
	again.Bind(p.onWorker)
	store(t, p.up, 2, "again")
	p.onWorker.want(t, call{kind: "frame", data: "again"})

	// A client's port takes its subscriptions along.
	before := p.clientConn.NATS().NumSubscriptions()
	up.Close()
	if got := p.clientConn.NATS().NumSubscriptions(); got != before-2 {
		t.Errorf("%d subscriptions, want %d", got, before-2)
	}
}

func TestOpenTwice(t *testing.T) {
	p := newPair(t)
	if _, err := p.worker.Open(p.ch); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("a worker's second Open: %v, want CONFLICT", err)
	}
	elsewhere := p.ch
	elsewhere.Route = "route-b"
	if _, err := p.worker.Open(elsewhere); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("Open on another route: %v, want INVALID_ARGUMENT", err)
	}
	observer := open(t, p.client, p.ch)
	seen := newRecorder()
	observer.Bind(seen)
	p.flush(t)
	store(t, p.down, 1, "both")
	p.onClient.want(t, call{kind: "frame", data: "both"})
	seen.want(t, call{kind: "frame", data: "both"})
	observer.Close()
	p.flush(t)
	store(t, p.down, 2, "one")
	p.onClient.want(t, call{kind: "frame", data: "one"})
}

// blocker is a Handler that breaks the law: it holds the dispatcher.
type blocker struct {
	recorder
	entered, leave chan struct{}
}

func (b *blocker) ControlMessage([]byte) {
	b.entered <- struct{}{}
	<-b.leave
}

func TestSlowConsumerIsCountedAndSaid(t *testing.T) {
	srv := natstest.Start(t)
	log := newLines()
	o := options(srv)
	o.Log = zerolog.New(log)
	c := connect(t, o)
	m := clientMux(t, c)
	ch := newChannel()
	port := open(t, m, ch)
	b := &blocker{entered: make(chan struct{}), leave: make(chan struct{})}
	port.Bind(b)
	leave := sync.OnceFunc(func() { close(b.leave) })
	t.Cleanup(leave)
	nc := srv.Connect(t)
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		if err := nc.Publish(ch.Control(subjects.Down), nil); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, b.entered)
	if line := receive(t, log.ch); !strings.Contains(line, "dropped") {
		t.Errorf("the log says %q", line)
	}
	if got := c.Counters().SlowConsumer; got != 1 {
		t.Errorf("SlowConsumer = %d, want 1", got)
	}
	port.Close()
	leave()
	// The connection and other channels of it go on.
	other, rec := open(t, m, newChannel()), newRecorder()
	other.Bind(rec)
	store(t, other, 1, "x")
	rec.want(t, call{kind: "refused", seq: 1, why: duplex.RefusedNoResponders})
}
