// Package client runs commands in leased sandboxes of a weft fabric and streams
// their standard input, output and error through duplex channels.
//
//	c, err := client.Connect(ctx, client.Options{URL: "nats://127.0.0.1:4222", Auth: client.Auth{Token: token}})
//	lease, err := c.AcquireLease(ctx, client.AcquireOptions{})
//	ch, err := lease.Open(ctx, client.Command{Argv: []string{"cat"}, Stdin: client.StdinPipe})
//
// A [Client] is one connection and one identity. A [Lease] is the right to one
// sandbox, kept by renewals in the background until Release. A [Channel] is one
// command. [Lease.Execute] runs a command to its end and keeps what it printed;
// [Lease.OpenOrExecute] takes whichever of the two the lease can do.
//
// # Reading
//
// Nothing is dropped because a reader is slow: a command whose output nobody
// takes blocks in its write once the window (256 KiB per stream) is full. So
// whoever reads standard output to its end before looking at standard error can
// wait for ever on a command that fills the other one first. Three ways are
// safe: let the library pump one or both streams ([WithStdout], [WithStderr]);
// read both at the same time; or give up what is not wanted
// ([Channel.CloseStdout], Close of [Channel.Stderr]), which takes and drops it.
//
// # The end
//
// [Channel.Wait] returns the one outcome of a channel. Without the end of the
// command on the channel or on the coordinators' record it is [Unknown], never
// exited(0), and the error says which layer failed ([LayerOf]). A stream ends
// with io.EOF only when every byte of it was delivered; otherwise the error
// after the last byte says why there are no more.
//
// A client whose connection drops and returns goes on where it was. When a
// worker falls silent the client says so ([Options].OnNotice) and waits: that
// the worker is lost is for the coordinators to decide.
//
// # Attaching
//
// A channel outlives its client if [Command].OnDisconnect says so. Another client
// goes on with it: [Client.Attach] asks the coordinators, [Client.Resume] the worker
// alone, with what [Channel.Save] returned; whoever held the channel is fenced off.
// A byte counts as delivered when the application has taken it: when Read has
// returned it, or when the writer of [WithStdout] has. So an application that
// must lose nothing has a writer that keeps what it is given, and attaches with
// [AttachOptions].From: what is behind it comes once, and nothing else does.
// [Channel.AttachedAt] says where the streams went on, and of standard input how
// much the worker has. [Client.Observe] reads along and disturbs nobody.
//
// # Errors and contexts
//
// Every error is an [Error] with a closed list of codes, or wraps the error of
// a context that ended; test with errors.Is and the Err variables. A context
// bounds only the call that it is given to: a lease and a channel live on.
package client
