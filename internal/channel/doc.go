// Package channel is the channel record: one command, who may hold it, and its
// one recorded end. It is pure, like package lease: moves return a new Record.
//
//	New ──▶ opening ──Opened──▶ open ──End──▶ ended
//	           └───────────────End──────────────▲
//
// The record is the durable gate decision: it is created, expecting none,
// before the worker is told anything, and it holds the secret that every key of
// the channel follows from. Its end is written by compare-and-set and the first
// writer wins: End of an ended record changes nothing and returns what is there.
// The newest attach number is on record too, written before the worker is told,
// so that no two parties are given one number. Numbers may be missing: an attach
// that came to nothing leaves its own unused.
// A channel without a recorded outcome ended as unknown, never as exit 0.
package channel
