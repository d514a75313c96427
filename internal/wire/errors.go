package wire

import (
	"errors"
	"fmt"
)

// Code names why weft refused or gave up. The list is closed for what weft
// itself writes; a code from a newer peer survives a round trip unchanged.
type Code string

// The codes of docs/PROTOCOL.md, "Errors".
const (
	CodeInvalidArgument     Code = "INVALID_ARGUMENT"
	CodePayloadTooLarge     Code = "PAYLOAD_TOO_LARGE"
	CodeNotFound            Code = "NOT_FOUND"
	CodeLeaseExpired        Code = "LEASE_EXPIRED"
	CodeLeaseReleased       Code = "LEASE_RELEASED"
	CodeLeaseLost           Code = "LEASE_LOST"
	CodeStaleEpoch          Code = "STALE_EPOCH"
	CodeDriverNotRegistered Code = "DRIVER_NOT_REGISTERED"
	CodeDriverNoDuplex      Code = "DRIVER_NO_DUPLEX"
	CodeCapabilityDenied    Code = "DUPLEX_CHANNEL_CAPABILITY_DENIED"
	CodeDuplexUnsupported   Code = "DUPLEX_UNSUPPORTED_FOR_LEASE"
	CodeMetadataIncomplete  Code = "LEASE_METADATA_INCOMPLETE"
	CodeRouteBusy           Code = "DUPLEX_CHANNEL_ROUTE_BUSY"
	CodeQuotaExceeded       Code = "QUOTA_EXCEEDED"
	CodeUnavailable         Code = "UNAVAILABLE"
	CodeConflict            Code = "CONFLICT"
	CodeWorkerNotRunning    Code = "WORKER_NOT_RUNNING"
	CodeWorkerDraining      Code = "WORKER_DRAINING"
	CodeSandboxNotCached    Code = "SANDBOX_NOT_CACHED"
	CodeOpenFailed          Code = "DUPLEX_CHANNEL_OPEN_FAILED"
	CodeStoreRolledBack     Code = "STORE_ROLLED_BACK"
	CodeFenced              Code = "FENCED"
	CodeNoWorker            Code = "NO_WORKER"
	CodeUnauthenticated     Code = "UNAUTHENTICATED"
	CodePermissionDenied    Code = "PERMISSION_DENIED"
	CodeUnsupportedVersion  Code = "UNSUPPORTED_VERSION"
	CodeDeadlineExceeded    Code = "DEADLINE_EXCEEDED"
	CodeTooManyRequests     Code = "TOO_MANY_REQUESTS"
	CodeInternal            Code = "INTERNAL"
	CodeStdinClosed         Code = "STDIN_CLOSED"
	CodeChannelEnded        Code = "CHANNEL_ENDED"
)

// Error is the one error type that crosses a trust boundary. Message says what
// happened and what to do next; the cause of a failure stays where it happened.
type Error struct {
	Code      Code              `json:"code"`
	Message   string            `json:"message"`
	Retryable bool              `json:"retryable,omitempty"`
	Details   map[string]string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Code)
	}
	return string(e.Code) + ": " + e.Message
}

// Is reports whether target is an *Error of the same code, so that
// errors.Is(err, &Error{Code: CodeNotFound}) holds on both sides of the wire.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Message == "" || t.Message == e.Message)
}

// Errorf makes an Error that repeating the same call will not mend.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Retryable: retryable[code]}
}

// With returns e with one more detail.
func (e *Error) With(key, value string) *Error {
	if e.Details == nil {
		e.Details = map[string]string{}
	}
	e.Details[key] = value
	return e
}

// CodeOf returns the code of the first *Error in err's chain, or "" if there is none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// AsError returns err as an *Error. What is not one already becomes INTERNAL
// with a fixed text: a raw error of a driver or a peer never crosses a trust
// boundary.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(CodeInternal, "the request failed inside weft; the operator's log has the cause")
}

// retryable lists the codes for which the same call may succeed later.
var retryable = map[Code]bool{
	CodeUnavailable:      true,
	CodeRouteBusy:        true,
	CodeQuotaExceeded:    true,
	CodeNoWorker:         true,
	CodeWorkerDraining:   true,
	CodeTooManyRequests:  true,
	CodeDeadlineExceeded: true,
}

// FallsBackToExecute reports whether a refusal with this code means that the
// lease has no duplex channel but may still run one-shot commands: gate checks
// 4 to 7 (docs/PROTOCOL.md, "Gate").
func (c Code) FallsBackToExecute() bool {
	switch c {
	case CodeDriverNotRegistered, CodeDriverNoDuplex, CodeCapabilityDenied,
		CodeDuplexUnsupported, CodeMetadataIncomplete:
		return true
	}
	return false
}
