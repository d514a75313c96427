package natsbus_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
)

// The payloads that the benchmarks carry: a keystroke, a line, a full frame.
var benchSizes = [...]int{64, 1 << 10, 64 << 10}

// echo is a Handler that sends everything back where it came from.
type echo struct {
	port *natsbus.Port
	seq  uint64
}

func (e *echo) Frame(b []byte) {
	e.seq++
	_ = e.port.Store(e.seq, b)
}
func (e *echo) ControlMessage(b []byte)           { _ = e.port.Control(b) }
func (*echo) Stored(uint64, uint64)               {}
func (*echo) Refused(uint64, duplex.RefuseReason) {}

// arrivals is a Handler that tells what came and forgets it.
type arrivals struct{ in, acks chan struct{} }

func (a *arrivals) Frame([]byte)                      { a.in <- struct{}{} }
func (a *arrivals) ControlMessage([]byte)             { a.in <- struct{}{} }
func (a *arrivals) Stored(uint64, uint64)             { a.acks <- struct{}{} }
func (*arrivals) Refused(uint64, duplex.RefuseReason) {}

func newArrivals() *arrivals {
	return &arrivals{in: make(chan struct{}, 1<<12), acks: make(chan struct{}, 1<<12)}
}

func drain(ch <-chan struct{}) {
	for len(ch) > 0 {
		<-ch
	}
}

// BenchmarkEcho measures four echoes in turn, so that whatever else the machine
// does hits all of them alike, and reports medians and ratios: nats.go alone
// (core), Control, nats.go with a stored and republished message each way
// (log), and Store. What the adapter costs is control/core and store/log.
func BenchmarkEcho(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := newPair(b)
			data := make([]byte, size)
			ops := [...]struct {
				name string
				op   func()
			}{
				{"core", rawEcho(b, p.srv, "there", "there", "back", "back", data)},
				{"control", controlEcho(b, p, data)},
				{"log", rawLogEcho(b, p.srv, data)},
				{"store", storeEcho(b, p, data)},
			}
			took := [len(ops)][]time.Duration{}
			for b.Loop() {
				for i, o := range ops {
					start := time.Now()
					o.op()
					took[i] = append(took[i], time.Since(start))
				}
			}
			var p50 [len(ops)]float64
			for i, o := range ops {
				slices.Sort(took[i])
				p50[i] = float64(took[i][len(took[i])/2].Nanoseconds()) / 1000
				b.ReportMetric(p50[i], o.name+"-µs")
			}
			b.ReportMetric(p50[1]/p50[0], "control/core")
			b.ReportMetric(p50[3]/p50[2], "store/log")
			b.ReportMetric(p50[3]/p50[0], "store/core")
		})
	}
}

// rawEcho is the yardstick: nats.go alone on two connections. A message sent to
// there comes in on thereIn.
func rawEcho(b *testing.B, srv *natstest.Server, there, thereIn, back, backIn string, data []byte) func() {
	one, two := srv.Connect(b), srv.Connect(b)
	in := make(chan struct{}, 1)
	if _, err := two.Subscribe(thereIn, func(m *nats.Msg) { _ = two.PublishRequest(back, "_INBOX.two", m.Data) }); err != nil {
		b.Fatal(err)
	}
	if _, err := one.Subscribe(backIn, func(*nats.Msg) { in <- struct{}{} }); err != nil {
		b.Fatal(err)
	}
	for _, nc := range []*nats.Conn{one, two} {
		if err := nc.Flush(); err != nil {
			b.Fatal(err)
		}
	}
	return func() {
		_ = one.PublishRequest(there, "_INBOX.one", data)
		<-in
	}
}

func rawLogEcho(b *testing.B, srv *natstest.Server, data []byte) func() {
	ch := newChannel()
	// Somebody takes the acks, as a sender must.
	for _, inbox := range []string{"_INBOX.one", "_INBOX.two"} {
		if _, err := srv.Connect(b).Subscribe(inbox, func(*nats.Msg) {}); err != nil {
			b.Fatal(err)
		}
	}
	return rawEcho(b, srv, ch.Data(subjects.Up), ch.Live(subjects.Up), ch.Data(subjects.Down), ch.Live(subjects.Down), data)
}

func benchPorts(b *testing.B, p *pair) (*natsbus.Port, *arrivals) {
	ch := newChannel()
	up, down := open(b, p.client, ch), open(b, p.worker, ch)
	down.Bind(&echo{port: down})
	a := newArrivals()
	up.Bind(a)
	p.flush(b)
	return up, a
}

func storeEcho(b *testing.B, p *pair, data []byte) func() {
	up, a := benchPorts(b, p)
	var seq uint64
	return func() {
		seq++
		_ = up.Store(seq, data)
		<-a.in
		drain(a.acks)
	}
}

func controlEcho(b *testing.B, p *pair, data []byte) func() {
	up, a := benchPorts(b, p)
	return func() {
		_ = up.Control(data)
		<-a.in
	}
}

// BenchmarkOneWay keeps 64 messages between the sender and the receiver: nats.go
// alone, and stored and republished.
func BenchmarkOneWay(b *testing.B) {
	const window = 64
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("core/%d", size), func(b *testing.B) {
			srv := natstest.Start(b)
			one, two := srv.Connect(b), srv.Connect(b)
			got := make(chan struct{}, 1<<12)
			if _, err := two.Subscribe("there", func(*nats.Msg) { got <- struct{}{} }); err != nil {
				b.Fatal(err)
			}
			if err := two.Flush(); err != nil {
				b.Fatal(err)
			}
			flow(b, size, window, func(_ uint64, data []byte) { _ = one.Publish("there", data) }, got)
		})
		b.Run(fmt.Sprintf("stored/%d", size), func(b *testing.B) {
			p := newPair(b)
			ch := newChannel()
			up, down := open(b, p.client, ch), open(b, p.worker, ch)
			sender, receiver := newArrivals(), newArrivals()
			up.Bind(receiver)
			down.Bind(sender)
			p.flush(b)
			flow(b, size, window, func(seq uint64, data []byte) {
				_ = down.Store(seq, data)
				drain(sender.acks)
			}, receiver.in)
		})
	}
}

func flow(b *testing.B, size, window int, send func(uint64, []byte), got <-chan struct{}) {
	data := make([]byte, size)
	var seq uint64
	b.SetBytes(int64(size))
	b.ReportAllocs()
	inFlight := 0
	for b.Loop() {
		if inFlight == window {
			<-got
			inFlight--
		}
		seq++
		send(seq, data)
		inFlight++
	}
	for range inFlight {
		<-got
	}
}
