// Package registry is what one coordinator knows of the workers: who is there,
// what each can do, how long it has been silent, and which may take a lease.
//
// It is pure: a plain struct without clock, lock, goroutine or I/O. Its owner
// passes the time in, guards it, and carries out what it asks for (probes).
//
// # Who is authoritative
//
// Nobody is: a Table is one judge's opinion from what it received on its own
// connection, by its own clock. It chooses candidates and names the silent. The
// truth at the gate is the live round trip to the worker, the arbiter of the
// slots is the worker, and the arbiter of a lease is its record.
//
// # Identity
//
// A worker id is held by one instance, a route by one worker. Another instance
// is not decided here: Register answers with the Target to probe. If that
// answers, the newcomer is refused (Conflict); if it is silent, Takeover
// replaces it. An instance that said goodbye or is dead is replaced at once. So
// a clone cannot push out a live worker, and a restart after kill -9 waits for
// one unanswered probe and nothing else. Of one instance only a higher beat
// number counts; beats of replaced instances are dropped and counted.
//
// # Liveness
//
//	        silent > window            probe unanswered
//	live ────────────────▶ suspect ────────────────────▶ dead
//	  ▲                       │                            │
//	  └────────── any contact of the instance ─────────────┘
//
//	window = BeatPeriod × Missed; exactly one window old is still live
//
// States are computed when asked and stored nowhere. Draining is said by the
// worker itself and shown while it is live; gone is a goodbye, and final for its instance.
//
// A judge that could not hear judges nobody: silence counts from the last
// contact or from the moment the own connection came up, whichever is later,
// and while the connection is down nobody is suspect or dead. What would have
// been judged is shown as unknown.
//
// # The brake
//
// When more than half of the workers that are not dead or gone, and at least
// three, have missed a beat together (silent for 1.5 × BeatPeriod), the fault is
// more likely the bus than the workers: BusSuspected reports it and nobody is
// declared dead. One beat, not three, because otherwise the first of a
// silenced fleet would be dead before the others had become suspect. The brake
// goes when enough of them are heard again.
//
// # Slots
//
// A beat's report is old when it is used. Used slots are therefore
//
//	max(reported − freed since that beat + reserved since that beat, all reserved)
//
// where reserved and freed are this coordinator's own grants. Reserve checks
// and takes in one step, so grants between two beats cannot overfill a worker.
package registry
