// Package wire is the shape of everything that crosses the network: frames and
// control messages of a channel, the keys that tag them, the JSON bodies of
// requests, outcomes and errors. It decodes strictly and bounds before it
// allocates; it never talks to NATS, reads no clock and starts no goroutine.
//
// The normative text is docs/PROTOCOL.md; wire_test.go and testdata/golden pin
// every constant and one instance of every message byte for byte.
package wire
