// Package natsbus is the one adapter between weft and NATS for workers and
// clients: requests, heartbeats and orders over a Conn, the messages of
// channels over a Mux. Nobody else talks to nats.go on their behalf.
//
// # What it promises
//
// Nothing that it sends waits in a buffer for a server that is away: while the
// connection is down every call fails at once with UNAVAILABLE, and the caller,
// who knows what is still worth sending, repeats it. The connection comes back
// by itself, for ever, at a jittered pace; subscriptions come back with it. A
// message may be lost (a disconnect, a slow consumer) or come twice; the state
// machines of internal/duplex repair that, so a drop is counted, not reported.
//
// # What it lets in
//
// Subjects come from internal/subjects and are checked before a byte leaves.
// A live message (lv) counts only with the headers that JetStream puts on a
// republished one, naming the stored twin of the subject it came on. A control
// message (ct) with such headers is an ack or a stored message that someone had
// sent to the wrong place, and is dropped. An answer goes only to a reply
// subject that is an inbox: a request that names any other is not answered.
//
// # Goroutines
//
// nats.go runs one goroutine per callback subscription; a Mux of a client has
// one dispatcher for all its channels instead. Handlers run on these and must
// not block: a blocked one stops every channel of the process. Close of a Conn,
// Mux or Subscription returns when its goroutines have left the handlers, so it
// must not be called from inside one.
package natsbus
