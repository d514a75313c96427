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
//	orders      bind, release, open, attach, close, probe, inventory: decoded and checked, never in the way of the next
//	table       leases held, channels open, the newest epochs, the ends of late channels
//	channel     one command: its process, two pumps, its stdin, its one end
//	audience    whether a channel's client is there, and what its pumps do about it
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
// place, only what is in flight and at most two pipes' worth of memory until the
// channel is forgotten. Limits.Untaken bounds how many of those a lease has.
//
// Output is pumped by one goroutine per stream, which asks for credit when there
// is something to read and holds neither buffer nor credit while the command is
// silent. Stdin is written where it arrives, without a goroutine, until the pipe
// is full; then one waits for room and writes the rest in order.
//
// # Clients that come and go
//
// A new attach fences the one before; it comes as an order, or from whoever
// holds the key of the newest attach, which the duplex end settles by itself.
//
//	attached ──(three keepalives missed, or said so)──▶ detached ──(grace over)──▶ client_lost
//	   ▲                                                   │
//	   └──────────────── attach, or heard again ───────────┘
//
// While the client is away, output for which there is no credit goes to a file,
// up to Limits.Spill; when that is full, or 0 from the start, it stays in the
// pipe and the process blocks. With the first credit the file is sent before the
// pipe is read again. What a command has in flight and in memory is bounded for
// the lease and for the worker (Limits.InFlightLease, InFlightWorker); within
// that every channel has a share that is always its own.
//
// # Stopping
//
// When Run's context ends, new binds and opens are refused, commands end with
// worker_drained, their bytes and EXITs get a bounded time to be taken, every
// sandbox is destroyed, and a goodbye is the last message.
package worker
