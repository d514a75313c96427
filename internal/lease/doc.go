// Package lease is the lease record: its fields, its states and the moves
// between them. It is pure: no clock, no store, no NATS; now is an argument and
// every move returns a new Record or a typed error, never changing the old one.
//
// # Who is authoritative
//
// The record in the store is, and it changes by compare-and-set only: a move
// computed here counts once its write was accepted. The epoch is written inside
// that same write. A worker obeys the highest epoch it has seen of a lease and
// refuses older ones, so the loser of a race cannot do harm with what it holds.
//
// # States
//
//	           Placed (epoch n+1)
//	            ┌──┐
//	            ▼  │   Bound
//	New ───▶ pending ────────▶ active ◀───────▶ retained
//	            │  │             │ │ │            │ │ │
//	     Failed │  │ Release,    │ │ │            │ │ │
//	            ▼  │ Abandon     │ │ └── Lost ────│─│─┴──▶ lost
//	         failed│             │ └──── Expired ─│─┴────▶ expired
//	               └──────┐ ┌────┘ Release        │
//	                      ▼ ▼                     │
//	                 pending_cleanup ◀────────────┘
//	                      │ TornDown
//	                      └───────▶ released | expired | failed
//
// released, expired, lost and failed are final. The record goes to pending
// before a sandbox may exist, naming the worker that is asked, and to
// pending_cleanup before it is torn down, so that no crash leaves a sandbox that
// no record knows. A teardown that succeeds at once ends in what was asked for;
// one that had to be tried again ends as expired.
//
// # Time
//
//	expires = min(renewed + TTL, created + life, provider's own end)
//
// The last two are hard: no renewal passes them and use is refused from then on.
// The first is not judged here: renewals are mostly kept in memory, so a record
// read from the store may look overdue while its worker is busy. Expiry is
// carried out by the worker, and only then recorded.
package lease
