package natsbus

import "sync/atomic"

// Counters counts what a Conn and its Muxes dropped since Connect.
type Counters struct {
	DroppedUnknownChannel   uint64 // for a channel that is not open here
	DroppedNoJetStream      uint64 // lv messages that no stream republished
	DroppedControlJetStream uint64 // ct messages with JetStream headers
	DroppedEarly            uint64 // beyond what a port keeps before Bind
	BadAck                  uint64 // answers on an ack inbox that are none
	BadReply                uint64 // requests whose reply subject is not an inbox
	SlowConsumer            uint64 // times a subscription began to drop
	Reconnects, Disconnects uint64
}

type counters struct {
	unknownChannel, noJetStream, controlJetStream, early atomic.Uint64
	badAck, badReply, slowConsumer                       atomic.Uint64
	reconnects, disconnects                              atomic.Uint64
}

func (c *counters) snapshot() Counters {
	return Counters{
		DroppedUnknownChannel:   c.unknownChannel.Load(),
		DroppedNoJetStream:      c.noJetStream.Load(),
		DroppedControlJetStream: c.controlJetStream.Load(),
		DroppedEarly:            c.early.Load(),
		BadAck:                  c.badAck.Load(),
		BadReply:                c.badReply.Load(),
		SlowConsumer:            c.slowConsumer.Load(),
		Reconnects:              c.reconnects.Load(),
		Disconnects:             c.disconnects.Load(),
	}
}
