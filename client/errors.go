package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/internal/wire"
)

// Error is the one error type of weft: a code, a sentence that says what to do
// next, whether the same call may succeed later, and details.
type Error = wire.Error

// Code names why weft refused or gave up.
type Code = wire.Code

// The codes.
const (
	CodeInvalidArgument     = wire.CodeInvalidArgument
	CodePayloadTooLarge     = wire.CodePayloadTooLarge
	CodeNotFound            = wire.CodeNotFound
	CodeLeaseExpired        = wire.CodeLeaseExpired
	CodeLeaseReleased       = wire.CodeLeaseReleased
	CodeLeaseLost           = wire.CodeLeaseLost
	CodeStaleEpoch          = wire.CodeStaleEpoch
	CodeDriverNotRegistered = wire.CodeDriverNotRegistered
	CodeDriverNoDuplex      = wire.CodeDriverNoDuplex
	CodeCapabilityDenied    = wire.CodeCapabilityDenied
	CodeDuplexUnsupported   = wire.CodeDuplexUnsupported
	CodeMetadataIncomplete  = wire.CodeMetadataIncomplete
	CodeRouteBusy           = wire.CodeRouteBusy
	CodeQuotaExceeded       = wire.CodeQuotaExceeded
	CodeUnavailable         = wire.CodeUnavailable
	CodeConflict            = wire.CodeConflict
	CodeWorkerNotRunning    = wire.CodeWorkerNotRunning
	CodeWorkerDraining      = wire.CodeWorkerDraining
	CodeSandboxNotCached    = wire.CodeSandboxNotCached
	CodeOpenFailed          = wire.CodeOpenFailed
	CodeStoreRolledBack     = wire.CodeStoreRolledBack
	CodeFenced              = wire.CodeFenced
	CodeNoWorker            = wire.CodeNoWorker
	CodeUnauthenticated     = wire.CodeUnauthenticated
	CodePermissionDenied    = wire.CodePermissionDenied
	CodeUnsupportedVersion  = wire.CodeUnsupportedVersion
	CodeDeadlineExceeded    = wire.CodeDeadlineExceeded
	CodeTooManyRequests     = wire.CodeTooManyRequests
	CodeInternal            = wire.CodeInternal
	CodeStdinClosed         = wire.CodeStdinClosed
	CodeChannelEnded        = wire.CodeChannelEnded
)

// Sentinels by code, for errors.Is.
var (
	ErrInvalidArgument    = &Error{Code: CodeInvalidArgument}
	ErrNotFound           = &Error{Code: CodeNotFound}
	ErrLeaseExpired       = &Error{Code: CodeLeaseExpired}
	ErrLeaseReleased      = &Error{Code: CodeLeaseReleased}
	ErrLeaseLost          = &Error{Code: CodeLeaseLost}
	ErrStaleEpoch         = &Error{Code: CodeStaleEpoch}
	ErrDuplexUnsupported  = &Error{Code: CodeDuplexUnsupported}
	ErrMetadataIncomplete = &Error{Code: CodeMetadataIncomplete}
	ErrRouteBusy          = &Error{Code: CodeRouteBusy}
	ErrUnavailable        = &Error{Code: CodeUnavailable}
	ErrConflict           = &Error{Code: CodeConflict}
	ErrWorkerNotRunning   = &Error{Code: CodeWorkerNotRunning}
	ErrWorkerDraining     = &Error{Code: CodeWorkerDraining}
	ErrFenced             = &Error{Code: CodeFenced}
	ErrNoWorker           = &Error{Code: CodeNoWorker}
	ErrUnauthenticated    = &Error{Code: CodeUnauthenticated}
	ErrPermissionDenied   = &Error{Code: CodePermissionDenied}
	ErrDeadlineExceeded   = &Error{Code: CodeDeadlineExceeded}
	ErrStdinClosed        = &Error{Code: CodeStdinClosed}
	ErrChannelEnded       = &Error{Code: CodeChannelEnded}
)

// CodeOf returns the code of the first [Error] in err's chain, or "".
func CodeOf(err error) Code { return wire.CodeOf(err) }

// Outcome is how a command ended; see [OutcomeKind] for the kinds.
type Outcome = wire.Outcome

// OutcomeKind is the kind of an outcome. The list is closed.
type OutcomeKind = wire.OutcomeKind

// The kinds of outcome.
const (
	Exited         = wire.Exited
	Signaled       = wire.Signaled
	TimedOut       = wire.TimedOut
	EndedByRequest = wire.EndedByRequest
	ClientLost     = wire.ClientLost
	LeaseExpired   = wire.LeaseExpired
	LeaseReleased  = wire.LeaseReleased
	LeaseLost      = wire.LeaseLost
	WorkerLost     = wire.WorkerLost
	WorkerDrained  = wire.WorkerDrained
	Revoked        = wire.Revoked
	LimitExceeded  = wire.LimitExceeded
	Stalled        = wire.Stalled
	StartFailed    = wire.StartFailed
	DataLost       = wire.DataLost
	Unknown        = wire.Unknown
)

// Layer is the part that an end is owed to, so that a caller does not rebuild
// a healthy sandbox because of a broken link.
type Layer string

// The layers.
const (
	LayerProcess   Layer = "process"   // the command itself, or who asked for its end
	LayerWorker    Layer = "worker"    // the worker or its sandbox
	LayerTransport Layer = "transport" // the link between client and worker
)

// Keys of Error.Details that this package sets.
const (
	detailOutcome = "outcome"
	detailLayer   = "layer"
)

// LayerOf says which layer an end is owed to, from what Wait or Execute
// returned. It is "" for exited(0) without an error.
func LayerOf(o Outcome, err error) Layer {
	if e, ok := errors.AsType[*Error](err); ok && e.Details[detailLayer] != "" {
		return Layer(e.Details[detailLayer])
	}
	switch o.Kind {
	case WorkerLost, WorkerDrained, LeaseLost, Unknown, "":
		return LayerWorker
	case DataLost, Stalled, ClientLost:
		return LayerTransport
	}
	if o.Success() && err == nil {
		return ""
	}
	return LayerProcess
}

// endError is the error of a channel that ended without the whole of its
// output and end having arrived.
func endError(code Code, layer Layer, o Outcome, format string, args ...any) *Error {
	return wire.Errorf(code, format, args...).
		With(detailLayer, string(layer)).With(detailOutcome, o.String())
}

// typed returns err as it may leave this package: an *Error, or the error of
// ctx, which bounded what was being done.
func typed(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	switch ended := ctx.Err(); {
	case ended == nil:
		return wire.AsError(err)
	case errors.Is(ended, context.DeadlineExceeded):
		return fmt.Errorf("%w (%w)", wire.Errorf(CodeDeadlineExceeded, "%s did not end in time", what), ended)
	case errors.Is(err, ended):
		return fmt.Errorf("client: %s: %w", what, ended)
	default:
		return fmt.Errorf("client: %s: %w (%w)", what, ended, err) // the caller's own cause
	}
}

// join is errors.Join that leaves a single error as it is.
func join(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func errClosed() *Error {
	e := wire.Errorf(CodeUnavailable, "this client was closed; connect again").With(detailLayer, string(LayerTransport))
	e.Retryable = false
	return e
}
