package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		o    Outcome
		text string
		exit int
	}{
		{ExitedWith(0), "exited(0)", 0},
		{ExitedWith(7), "exited(7)", 7},
		{ExitedWith(255), "exited(255)", 255},
		{ExitedWith(256 + 3), "exited(259)", 3},
		{Outcome{Kind: Exited}, "unknown", ExitLost}, // never exit 0 without a code
		{SignaledBy("KILL", false), "signaled(KILL, core=false)", 137},
		{SignaledBy("SEGV", true), "signaled(SEGV, core=true)", 139},
		{SignaledBy("INT", false), "signaled(INT, core=false)", 130},
		{SignaledBy(SignalName(34), false), "signaled(34, core=false)", 162}, // a real-time signal
		{SignaledBy("FOO", false), "signaled(FOO, core=false)", ExitLost},
		{SignaledBy("9999", false), "signaled(9999, core=false)", ExitLost},
		{SignaledBy("-1", false), "signaled(-1, core=false)", ExitLost},
		{Outcome{Kind: TimedOut}, "timed_out", ExitTimedOut},
		{Outcome{Kind: EndedByRequest}, "ended_by_request", ExitRefused},
		{Outcome{Kind: ClientLost}, "client_lost", ExitRefused},
		{Outcome{Kind: LeaseExpired}, "lease_expired", ExitRefused},
		{Outcome{Kind: LeaseReleased}, "lease_released", ExitRefused},
		{Outcome{Kind: LeaseLost}, "lease_lost", ExitLost},
		{Outcome{Kind: WorkerLost}, "worker_lost", ExitLost},
		{Outcome{Kind: WorkerDrained}, "worker_drained", ExitRefused},
		{Outcome{Kind: Revoked, Reason: "capability"}, "revoked(capability)", ExitRefused},
		{Limit("memory"), "limit_exceeded(memory)", ExitRefused},
		{Outcome{Kind: Stalled}, "stalled", ExitLost},
		{StartFailedFor(StartNotFound), "start_failed(not_found)", ExitNotFound},
		{StartFailedFor(StartNotExecutable), "start_failed(not_executable)", ExitNotExecutable},
		{StartFailedFor(StartCwd), "start_failed(cwd)", ExitRefused},
		{StartFailedFor(StartOther), "start_failed(other)", ExitRefused},
		{Outcome{Kind: DataLost, Bytes: 12}, "data_lost(12)", ExitLost},
		{Outcome{Kind: Unknown}, "unknown", ExitLost},
		{Outcome{}, "unknown", ExitLost},
		{Outcome{Kind: "of_a_newer_version"}, "of_a_newer_version", ExitLost},
	} {
		if c.o.String() != c.text || c.o.ExitCode() != c.exit {
			t.Errorf("%+v is %q and exits %d; want %q and %d", c.o, c.o.String(), c.o.ExitCode(), c.text, c.exit)
		}
		if c.o.Success() != (c.text == "exited(0)") {
			t.Errorf("%s: Success is %t", c.text, c.o.Success())
		}
		var back Outcome
		if err := json.Unmarshal(Encode(c.o), &back); err != nil || back.String() != c.text {
			t.Errorf("%s comes back as %s, %v", c.text, back, err)
		}
	}
}

func TestSignalNames(t *testing.T) {
	for _, bad := range []string{"", "SIG", "0", "-1", "9", "9999", "SIGFOO", "int", "SIGSIGINT", "INT "} {
		if n := SignalNumber(bad); n != 0 {
			t.Errorf("%q is signal %d; want none", bad, n)
		}
	}
	if n := SignalName(64); n != "64" {
		t.Errorf("signal 64 is %q; want its digits", n)
	}
}

func TestErrorsMatchByCode(t *testing.T) {
	err := Errorf(CodeNotFound, "there is no lease %s", "x")
	wrapped := fmt.Errorf("open: %w", err)
	for _, target := range []error{&Error{Code: CodeNotFound}, &Error{Code: CodeNotFound, Message: "there is no lease x"}, err} {
		if !errors.Is(wrapped, target) {
			t.Errorf("%v is not %v", wrapped, target)
		}
	}
	for _, target := range []error{&Error{Code: CodeConflict}, &Error{Code: CodeNotFound, Message: "another"}, &Error{}, errors.New("NOT_FOUND")} {
		if errors.Is(wrapped, target) {
			t.Errorf("%v is %v", wrapped, target)
		}
	}
	if CodeOf(wrapped) != CodeNotFound || CodeOf(nil) != "" || CodeOf(errors.New("x")) != "" {
		t.Error("CodeOf does not find the code")
	}
	if err.Error() != "NOT_FOUND: there is no lease x" || (&Error{Code: CodeFenced}).Error() != "FENCED" {
		t.Errorf("texts %q and %q", err, &Error{Code: CodeFenced})
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	sent := Errorf(CodeTooManyRequests, "wait").With("retryAfterMs", "200").With("why", "busy")
	var got *Error
	if err := json.Unmarshal(Encode(sent), &got); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(got, sent) || !got.Retryable || got.Details["retryAfterMs"] != "200" || got.Details["why"] != "busy" {
		t.Errorf("came back as %+v", got)
	}
	newer := []byte(`{"code":"FROM_A_NEWER_PEER","message":"m","retryable":true}`)
	if err := json.Unmarshal(newer, &got); err != nil || got.Code != "FROM_A_NEWER_PEER" || !strings.Contains(string(Encode(got)), "FROM_A_NEWER_PEER") {
		t.Errorf("an unknown code comes back as %+v, %v", got, err)
	}
}

func TestAsErrorKeepsCausesHome(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.7: password hunter2")
	for _, err := range []error{cause, fmt.Errorf("driver: %w", cause)} {
		if e := AsError(err); e.Code != CodeInternal || strings.Contains(string(Encode(e)), "hunter2") {
			t.Errorf("%v crosses as %s", err, Encode(e))
		}
	}
	typed := Errorf(CodeUnavailable, "try again")
	both := fmt.Errorf("%w (%w)", typed, cause)
	if e := AsError(both); e != typed || strings.Contains(string(Encode(e)), "hunter2") {
		t.Errorf("a wrapped cause crosses as %s", Encode(e))
	}
	if AsError(nil) != nil {
		t.Error("nil becomes an error")
	}
}

// codes are every code of the package, from the pins.
func codes() []Code {
	var out []Code
	for _, p := range codePins() {
		out = append(out, p.got.(Code))
	}
	return out
}

func TestRetryableCodes(t *testing.T) {
	want := "DUPLEX_CHANNEL_ROUTE_BUSY QUOTA_EXCEEDED UNAVAILABLE WORKER_DRAINING NO_WORKER DEADLINE_EXCEEDED TOO_MANY_REQUESTS"
	var got []string
	for _, c := range codes() {
		if Errorf(c, "x").Retryable {
			got = append(got, string(c))
		}
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("retryable are %s; want %s", s, want)
	}
}

func TestG004_FallbackCodesAreThoseOfChecks4To7(t *testing.T) {
	want := "DRIVER_NOT_REGISTERED DRIVER_NO_DUPLEX DUPLEX_CHANNEL_CAPABILITY_DENIED DUPLEX_UNSUPPORTED_FOR_LEASE LEASE_METADATA_INCOMPLETE"
	var got []string
	for _, c := range codes() {
		if c.FallsBackToExecute() {
			got = append(got, string(c))
		}
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("fallback on %s; want %s", s, want)
	}
}
