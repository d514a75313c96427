// Package cli is the weft command: one file for each noun, and the rules that
// they share.
//
// # Which server
//
// The first of these that says something: --server or --context; WEFT_SERVER,
// NATS_URL, WEFT_CONTEXT or NATS_CONTEXT; the selected nats context; the user's
// running weft up. With none of them weft run, alone, brings up a stack of its
// own in this process, without a port; every other command says what to do.
//
// # Exit status
//
// The command's own; 128+n when signal n ended it; 124 its timeout passed; 125
// weft refused, or ended it for a reason that is on standard error; 126 and 127
// it cannot be executed, or is not there; 255 the link or the worker is lost.
// When a signal ended weft itself: 128 and its number.
//
// # Streams and signals of run and open
//
// Standard input is read whatever it is, as ssh does (-n does not), and its end
// is the end of the command's input. Weft ends when the command does, though a
// read of a terminal may still be waiting.
//
// When the reader of standard output or standard error goes away, the rest of
// that stream is dropped and the command goes on, as it would if it wrote
// little: many a command has something to say on the other stream, and its exit
// status is the result. One that still writes to the closed stream two seconds
// later gets PIPE, which is what the kernel would have sent it. (weft run -- yes
// | head ends so, with 141.)
//
// INT is passed on to the command; the second INT stops it (TERM, the grace,
// KILL); the third leaves at once. TERM and HUP stop it. In every case the lease
// of run is released and a stack of our own is torn down. In weft attach the
// second INT, TERM and HUP detach instead: the command was there before and goes on.
package cli
