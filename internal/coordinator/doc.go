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
//     stream, read its last frame from its leader before they write worker_lost,
//     copy frames to who may read them, and purge it.
//   - The attach number on record only says which numbers coordinators have given
//     away. Who holds the channel is the worker's word: clients that saved their
//     key go on there without a coordinator.
//
// The order of an open, each step after the one before it has succeeded: gate
// rows 1 to 8 on the lease and the registry; row 9, the channel record created
// where none was, which is the decision; rows 10 to 12, one request to the
// worker. A refusal after row 9 ends the record, so the slot is free and a late
// process has a recorded end to die for. If this process dies in between, or the
// store took a write whose answer was lost, the record stays "opening". After the
// time that an open may take its worker is asked: what it has is put on record as
// open, what it does not have it is forbidden to start, and the record ends as
// unknown. Whatever a lease that has ended leaves on record is ended with it, when
// the worker has had the time to report it.
//
// The order of an attach: gate rows 1 to 7; the next number written on the record;
// the worker told. A worker that has passed the number names its own, and the
// next higher one is tried, unless the record has moved too: then somebody came
// later and has the channel. Of a channel that has ended rows 1 and 2 are asked
// only, its lease being over with it: the answer is the key of the way down and
// the outcome, to read what the log holds. If its worker recorded the end and the
// gate lets the caller in, the worker is asked first: it may keep the last bytes.
//
// The room in a log: each channel that has not ended reserves 512 KiB, and opens
// are refused when 80 % of the stream are reserved or used. Above 60 % used,
// strangers' and then ended channels' frames go, those of a lost worker last,
// and if that is not enough the alarm log_pressure is raised: what runs is never
// trimmed. Subjects that no record knows are purged after a minute, none while
// the store cannot be read.
//
// The order of a grant: the record as pending with its epoch, then the bind,
// then the record as active with what the worker says it made. A release writes
// the record first and tells the worker then.
//
// Failures: the store unreachable is UNAVAILABLE and nothing is granted, but
// renewals by workers hold, so that what runs goes on; an own
// write that timed out is read back and known by its nonce. A bucket that is
// missing although its twin or the incarnation marker is there is never made
// again. The micro service stopping by itself is noticed and it is started again.
package coordinator
