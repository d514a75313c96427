// Package duplex moves the bytes of one channel between its two ends, each byte
// once and in order, over a link that may lose, double, reorder, delay and cut,
// and a log that may refuse or forget.
//
// # Who is authoritative
//
// A frame's own sequence and offset are the truth; the log's stream sequence
// is not. A frame is made once and never altered: stored again, repaired or
// replayed it is the same bytes, so a receiver may take whichever copy comes
// first. A byte counts as delivered when the consumer has taken it, not when it
// has arrived; only then does the sender forget the frame, and only then is
// there credit for more.
//
// # Parts
//
//	consumer ◄── receiver ◄── End ◄── Handler ◄─┐
//	                           │                Link (NATS, memory, lossy)
//	producer ──► sender   ──► End ──►  Link ────┘
//
// sender and receiver are pure state machines: events and a time go in, messages
// come out; they hold no clock, lock or goroutine. End is the thin shell around
// one of each: one mutex, one timer, and the waiting of readers and writers. A
// Link carries messages and promises nothing.
//
// # Sender
//
//	taken ──► gathered ──► framed ──► published ──► stored ──► acknowledged
//	  credit       nothing in flight,     log        log's        receiver's
//	               or 64 KiB, or EOF                 ack          consumer
//
// Small writes gather while a frame is on its way to the log. Without a store
// ack only the oldest frame is repeated (250 ms → 5 s); when its ack comes the
// others follow. A log whose sequence goes down was lost: every unacknowledged
// frame is stored again. Before 112 stores have passed over the oldest
// unacknowledged frame it is stored again, so that a ring of 128 always holds
// every frame that a replay may need.
//
// # Receiver
//
// It delivers in sequence, holds what is early, drops what it has. A credit is
// absolute, so a lost, doubled or late one does no harm; it leaves when a quarter
// of a window was taken, or after 20 ms. A hole before a frame that came is
// asked for after 50 ms, a missing tail after 300 ms; the sender repairs it over
// control, byte-identical.
//
// # What each failure does
//
//	frame lost on the live subject     hole: REQUEST repair, FRAME over control
//	last frame lost                    the sender's probe says how far it has sent
//	store ack lost                     the oldest is repeated; a duplicate is dropped
//	credit lost                        the sender probes 200 ms → 5 s, the answer is the full state
//	log full or without leader         frames wait, the producer blocks, nothing is dropped
//	log lost                           everything unacknowledged is stored again
//	log refuses for 5 min              the end fails with UNAVAILABLE (outcome stalled)
//	peer breaks the protocol           dropped and counted; the 101st ends this channel alone
package duplex
