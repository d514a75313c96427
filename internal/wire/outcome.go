package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// OutcomeKind is how a channel ended.
type OutcomeKind string

// The outcomes of docs/PROTOCOL.md, "Outcomes". The list is closed.
const (
	Exited         OutcomeKind = "exited"
	Signaled       OutcomeKind = "signaled"
	TimedOut       OutcomeKind = "timed_out"
	EndedByRequest OutcomeKind = "ended_by_request"
	ClientLost     OutcomeKind = "client_lost"
	LeaseExpired   OutcomeKind = "lease_expired"
	LeaseReleased  OutcomeKind = "lease_released"
	LeaseLost      OutcomeKind = "lease_lost"
	WorkerLost     OutcomeKind = "worker_lost"
	WorkerDrained  OutcomeKind = "worker_drained"
	Revoked        OutcomeKind = "revoked"
	LimitExceeded  OutcomeKind = "limit_exceeded"
	Stalled        OutcomeKind = "stalled"
	StartFailed    OutcomeKind = "start_failed"
	DataLost       OutcomeKind = "data_lost"
	Unknown        OutcomeKind = "unknown"
)

// Reasons of StartFailed.
const (
	StartNotFound      = "not_found"
	StartNotExecutable = "not_executable"
	StartCwd           = "cwd"
	StartOther         = "other"
)

// Outcome is the one recorded end of a channel. Which fields count depends on Kind:
// Code for Exited (and, as a detail, for any kind whose command exited by
// itself while it was being ended), Signal and Core for Signaled, Reason for
// Revoked, LimitExceeded and StartFailed, Bytes and Offset for DataLost.
type Outcome struct {
	Kind   OutcomeKind `json:"kind"`
	Code   *int        `json:"code,omitempty"`
	Signal string      `json:"signal,omitempty"` // without SIG
	Core   bool        `json:"core,omitempty"`
	Reason string      `json:"reason,omitempty"`
	Bytes  int64       `json:"bytes,omitempty"`
	Offset int64       `json:"offset,omitempty"`
	Drain  string      `json:"drain,omitempty"` // why output was cut off at the drain bound, if it was
}

// DrainHeld is the Drain of an outcome whose pipes were held by a descendant
// of the command until the drain bound.
const DrainHeld = "held by descendant"

// ExitedWith is the outcome exited(code).
func ExitedWith(code int) Outcome { return Outcome{Kind: Exited, Code: &code} }

// SignaledBy is the outcome signaled(name, core); name is without SIG.
func SignaledBy(name string, core bool) Outcome {
	return Outcome{Kind: Signaled, Signal: name, Core: core}
}

// StartFailedFor is the outcome start_failed(why).
func StartFailedFor(why string) Outcome { return Outcome{Kind: StartFailed, Reason: why} }

// Limit is the outcome limit_exceeded(which).
func Limit(which string) Outcome { return Outcome{Kind: LimitExceeded, Reason: which} }

// Success reports exited(0), the only outcome that is one.
func (o Outcome) Success() bool { return o.Kind == Exited && o.Code != nil && *o.Code == 0 }

// String writes the outcome as the design does: exited(3), signaled(KILL, core=false).
func (o Outcome) String() string {
	switch o.Kind {
	case Exited:
		if o.Code == nil {
			return "unknown"
		}
		return fmt.Sprintf("exited(%d)", *o.Code)
	case Signaled:
		return fmt.Sprintf("signaled(%s, core=%t)", o.Signal, o.Core)
	case Revoked, LimitExceeded, StartFailed:
		return fmt.Sprintf("%s(%s)", o.Kind, o.Reason)
	case DataLost:
		return fmt.Sprintf("data_lost(%d)", o.Bytes)
	case "":
		return string(Unknown)
	}
	return string(o.Kind)
}

// Exit codes of the weft command for ends that are not the command's own.
const (
	ExitTimedOut      = 124
	ExitRefused       = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitLost          = 255
)

// ExitCode is the exit status of the weft command for o: the command's own,
// 128+n for a signal, else one of the Exit constants.
func (o Outcome) ExitCode() int {
	switch o.Kind {
	case Exited:
		if o.Code != nil {
			return *o.Code & 0xff
		}
		return ExitLost
	case Signaled:
		if n := SignalNumber(o.Signal); n > 0 {
			return 128 + n
		}
		// A real-time signal has a number only; see SignalName.
		if n, err := strconv.Atoi(o.Signal); err == nil && n > 0 && n <= 64 {
			return 128 + n
		}
		return ExitLost
	case TimedOut:
		return ExitTimedOut
	case StartFailed:
		switch o.Reason {
		case StartNotFound:
			return ExitNotFound
		case StartNotExecutable:
			return ExitNotExecutable
		}
		return ExitRefused
	case EndedByRequest, ClientLost, LeaseExpired, LeaseReleased, WorkerDrained, Revoked, LimitExceeded:
		return ExitRefused
	}
	return ExitLost
}

// signals are the names a client may send, with their Linux numbers
// (signal(7)); the protocol carries names, never numbers.
var signals = []struct {
	name string
	num  int
}{
	{"HUP", 1}, {"INT", 2}, {"QUIT", 3}, {"ILL", 4}, {"TRAP", 5}, {"ABRT", 6}, {"BUS", 7},
	{"FPE", 8}, {"KILL", 9}, {"USR1", 10}, {"SEGV", 11}, {"USR2", 12}, {"PIPE", 13},
	{"ALRM", 14}, {"TERM", 15}, {"STKFLT", 16}, {"CHLD", 17}, {"CONT", 18}, {"STOP", 19},
	{"TSTP", 20}, {"TTIN", 21}, {"TTOU", 22}, {"URG", 23}, {"XCPU", 24}, {"XFSZ", 25},
	{"VTALRM", 26}, {"PROF", 27}, {"WINCH", 28}, {"IO", 29}, {"PWR", 30}, {"SYS", 31},
}

// SignalNumber is the number of a signal name with or without SIG, or 0 for a
// name that is none.
func SignalNumber(name string) int {
	name = strings.TrimPrefix(name, "SIG")
	for _, s := range signals {
		if s.name == name {
			return s.num
		}
	}
	return 0
}

// SignalName is the name without SIG of a signal number; a number without a
// name (a real-time signal) is written as its decimal digits.
func SignalName(num int) string {
	for _, s := range signals {
		if s.num == num {
			return s.name
		}
	}
	return fmt.Sprintf("%d", num)
}
