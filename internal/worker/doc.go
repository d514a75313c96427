// Package worker hosts a plugin: it announces itself, binds leases to the
// sandboxes of a driver, runs commands in them, and moves their bytes.
//
// # Who is authoritative
//
// The worker is the arbiter of its slots, of what runs on it, and of how a
// command ended. What it may run is the coordinators' decision, which comes as
// an order; an order is for one instance, and one that is older than the newest
// epoch seen of its lease is refused. Nothing is started before New has found a
// way to check orders, and no order is taken before Run has registered.
//
// # Parts
//
//	announcer   registers (again when the connection is back), beats on a connection of its own
//	orders      bind, release, open, close, probe, inventory: decoded and checked, never in the way of the next
//	table       leases held, channels open, the newest epochs, the ends of late channels
//	channel     one command: its process, two pumps, its stdin, its one end
//	liveness    answers clients' keepalives, and ends what nobody listens to
//
// # The life of a channel
//
//	open order ─▶ keys, link ─▶ process started ─▶ running ─▶ tree dead ─▶ EOFs, EXIT ─▶ forgotten
//	                  │               │                           │
//	                  │               └─ start_failed ────────────┤
//	                  └─ refused: nothing was started             └─ wr ended, until it is answered
//
// A channel ends for the first cause that comes: its process exits, or somebody
// asks (see ending). Then, in this order: the tree is dead; what is left in its
// pipes is read; the outcome is fixed, the place on the lease is free and the
// coordinators are told; the bytes left, EOFs and EXIT go out as the reader
// grants credit. So a reader that never comes back holds no process and no
// place, only at most two pipes' worth of memory until the channel is forgotten.
//
// Output is pumped by one goroutine per stream, which asks for credit before it
// reads and holds no buffer while the command is silent. Stdin is written where
// it arrives, without a goroutine, until the pipe is full; then one waits for
// room and writes the rest in order.
//
// # Stopping
//
// When Run's context ends, new binds and opens are refused, commands end with
// worker_drained, their bytes and EXITs get a bounded time to be taken, every
// sandbox is destroyed, and a goodbye is the last message.
package worker
