// Package coordinator keeps the registry of workers, grants leases, and opens
// channels through the gate. Any number of coordinators run side by side; none
// of them is on the path of a channel's data.
//
// What is authoritative:
//
//   - Leases and channel records live in two JetStream KV buckets. Every change
//     is one compare-and-set on the record's revision; first writer wins. The
//     in-memory tables follow the buckets and are used to list, to count and to
//     start from, never to decide against the bucket.
//   - The registry is this coordinator's own opinion, made of the beats that it
//     heard. It chooses; the worker's live answer decides.
//   - A channel's bytes are in the tenant's log stream. Coordinators make the
//     stream, read its last frame before they write worker_lost, and purge it.
//
// The order of an open, each step after the one before it has succeeded: gate
// rows 1 to 8 on the lease and the registry; row 9, the channel record created
// where none was, which is the decision; rows 10 to 12, one request to the
// worker. A refusal after row 9 ends the record, so the slot is free and a late
// process has a recorded end to die for. If this process dies in between, the
// record stays "opening" and ends with the worker's report or the worker's loss.
//
// The order of a grant: the record as pending with its epoch, then the bind,
// then the record as active with what the worker says it made. A release writes
// the record first and tells the worker then.
//
// Failures: the store unreachable is UNAVAILABLE and nothing is granted; an own
// write that timed out is read back and known by its nonce. A bucket that is
// missing although its twin or the incarnation marker is there is never made
// again. The micro service stopping by itself is noticed and it is started again.
package coordinator
