package duplex

// Link carries the messages of one end of one channel. Neither method waits
// for the peer: Store hands a frame to the log, Control sends a message at most
// once. An error means that the message did not leave; the state machines
// repeat what matters, so an End only counts it.
type Link interface {
	// Store publishes a sealed frame. The log's answer comes back as
	// Handler.Stored or Handler.Refused with the same id, or never. Ids are from 1
	// and count the publishes of this end, repeats included; the log stores in
	// their order.
	Store(id uint64, frame []byte) error
	// Control sends a control message to the other end.
	Control(msg []byte) error
}

// Handler takes what a link receives for one end. Its methods return quickly
// and may be called from several goroutines. They own the slices they get.
type Handler interface {
	// Frame takes a live frame (from the lv subject).
	Frame(buf []byte)
	// ControlMessage takes a message from the ct subject.
	ControlMessage(buf []byte)
	// Stored says that the log has stored publish id as streamSeq.
	Stored(id, streamSeq uint64)
	// Refused says that the log answered publish id with an error: full, or
	// nobody there.
	Refused(id uint64, why RefuseReason)
}

// RefuseReason is why the log did not store a frame.
type RefuseReason uint8

// The reasons.
const (
	RefusedNoResponders RefuseReason = iota + 1 // the stream has no leader, or is gone
	RefusedFull                                 // a limit of the stream is reached (10077)
	RefusedOther
)
