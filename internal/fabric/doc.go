// Package fabric runs a whole weft in one process: an embedded NATS server, a
// coordinator and a worker.
//
// Without an address the server opens no port; its users connect in the process
// (Stack.InProcess). Its store, the worker's state and the sandboxes are in one
// directory, by default a temporary one that goes with the stack. With an
// address the user's other programs find the server by its state file.
//
// Start returns when the worker is registered, so the first lease is granted at
// once. Each part is given what it needs by the one before it and they end in
// the opposite order: the worker, which ends its commands; its driver, which
// kills what is left; the coordinator; the state file; the server; the
// directory. A part that ends by itself ends nothing else: Done tells, and the
// owner calls Stop.
//
// The worker obeys unsigned orders. Nobody but the owner of this process can
// send it any: the server has no port, or asks for a token.
package fabric
