// Package embedded runs a NATS server with JetStream inside this process, for
// weft run, weft up and coordinator --embed.
//
// The server runs deploy/nats.conf. Address, store directory and token are set
// on the parsed options, never pasted into the text, so no value can change the
// meaning of the file.
//
// A server that listens always asks for a token and makes one if it was given
// none. A server without a port is reached by in-process connections alone; they
// present the token too if there is one.
//
// One store directory belongs to one server at a time. nats-server does not
// guard it and two of them destroy each other's data, so a lock file in the
// directory is held for as long as the server runs.
package embedded
