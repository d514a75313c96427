package gate

import "github.com/weft-fabric/weft/internal/wire"

// oneShot is what a caller without a duplex channel can do.
const oneShot = "run a one-shot command instead (weft exec, or Lease.Execute)"

// refuse takes the text as it is: a name in it must not act as a format.
func refuse(code wire.Code, text string) *wire.Error {
	return wire.Errorf(code, "%s", text)
}

// RouteBusy refuses at check 8: the lease has limit channels.
func RouteBusy(limit int) *wire.Error {
	return wire.Errorf(wire.CodeRouteBusy, "the lease has %d channels, its limit; end one, or acquire another lease", limit)
}

// QuotaExceeded refuses at check 8: the tenant is at its limit of what.
func QuotaExceeded(what string, limit int64) *wire.Error {
	return wire.Errorf(wire.CodeQuotaExceeded, "the tenant is at its limit of %d %s; end some, or ask the operator for more", limit, what)
}

// Undecided refuses when the decision cannot be made or recorded (check 9, and
// a store that cannot be read before it): nothing runs without a record.
func Undecided() *wire.Error {
	return refuse(wire.CodeUnavailable, "the store of leases and channels does not answer, so nothing was started; try again")
}

// WorkerNotRunning refuses at check 10: no answer, or another instance's.
func WorkerNotRunning() *wire.Error {
	return refuse(wire.CodeWorkerNotRunning, "the lease's worker is not running, or is not the instance that holds the sandbox; acquire a new lease")
}

// WorkerDraining refuses at check 10.
func WorkerDraining() *wire.Error {
	return refuse(wire.CodeWorkerDraining, "the lease's worker takes no new commands, it is about to stop; acquire a new lease, another worker will take it")
}

// SandboxNotCached refuses at check 11.
func SandboxNotCached() *wire.Error {
	return refuse(wire.CodeSandboxNotCached, "the lease's worker does not have its sandbox any more, it was restarted; release the lease and acquire a new one")
}

// OpenFailed refuses at check 12. why is a short clause of weft's own, never
// the worker's text.
func OpenFailed(why string) *wire.Error {
	return refuse(wire.CodeOpenFailed, "the worker did not open the channel: "+why+"; what it may have started is being stopped, open a new channel")
}

// OpenTimedOut is for a worker that was live and did not answer the open in time.
func OpenTimedOut() *wire.Error {
	return refuse(wire.CodeDeadlineExceeded, "the worker did not answer the open in time; what it may have started is being stopped, open a new channel")
}
