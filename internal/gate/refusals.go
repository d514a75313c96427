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

// LogFull refuses at check 8: the log's room is used or reserved up to the mark
// above which no further channel is let in.
func LogFull() *wire.Error {
	return refuse(wire.CodeQuotaExceeded, "the tenant's log has no room for another channel; end some of them, or ask the operator for a larger log")
}

// AttachFailed refuses an attach that the worker did not accept. why is a short
// clause of weft's own, never the worker's text.
func AttachFailed(why string) *wire.Error {
	return refuse(wire.CodeOpenFailed, "the worker did not give the channel over: "+why+"; attach again, or open a new channel")
}

// AttachTimedOut is for a worker that was live and did not answer the attach in time.
func AttachTimedOut() *wire.Error {
	return refuse(wire.CodeDeadlineExceeded, "the worker did not answer the attach in time, it may have been carried out; attach again")
}

// AttachOvertaken refuses the older of two attaches that ran at once.
func AttachOvertaken() *wire.Error {
	return refuse(wire.CodeConflict, "another client attached to the channel at the same moment and holds it; attach again to take it over")
}

// NotThere refuses an attach to a channel that is on record as running and that
// the worker does not have: it is just being opened, or its end is being reported.
func NotThere() *wire.Error {
	return refuse(wire.CodeUnavailable, "the worker is just opening or ending the channel; ask again in a moment")
}
