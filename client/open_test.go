package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// prints is a script: the command prints and ends.
func prints(t testing.TB, out string, o wire.Outcome) func(*duplex.End, *wire.Exec) *wire.Outcome {
	return func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
		say(t, w, wire.Stdout, out)
		w.Finish(o)
		return nil
	}
}

func mustOpen(t *testing.T, l *Lease, cmd Command, opts ...Option) *Channel {
	t.Helper()
	if cmd.Argv == nil {
		cmd.Argv = []string{"x"}
	}
	ch, err := l.Open(t.Context(), cmd, opts...)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return ch
}

func TestC025_EarlierThanTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			for _, s := range []string{"one ", "two ", "three"} {
				say(t, w, wire.Stdout, s)
			}
			w.Finish(wire.ExitedWith(6))
			return nil
		}
		d.set(subjects.APIOpen, func(ctx context.Context, b []byte) ([]byte, error) {
			reply, err := d.open(ctx, b)
			time.Sleep(500 * time.Millisecond) // C-023: frames and EXIT are long there
			return reply, err
		})
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		out, err := io.ReadAll(ch)
		if string(out) != "one two three" || err != nil {
			t.Fatalf("read %q, %v", out, err)
		}
		if o, err := ch.Wait(); o.String() != "exited(6)" || err != nil {
			t.Fatalf("Wait: %v, %v", o, err)
		}
		if !isV4(ch.ID()) {
			t.Errorf("channel id %s is not a version 4 UUID", ch.ID())
		}
	})
}

func TestC026_LostAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = prints(t, "once", wire.ExitedWith(0))
		lost := true
		d.set(subjects.APIOpen, func(ctx context.Context, b []byte) ([]byte, error) {
			reply, err := d.open(ctx, b)
			if lost {
				lost = false
				return silence(ctx, b)
			}
			return reply, err
		})
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		out, _ := io.ReadAll(ch)
		if string(out) != "once" || len(d.opened) != 1 || d.asked(subjects.APIOpen) != 2 {
			t.Errorf("read %q from %d channels after %d requests", out, len(d.opened), d.asked(subjects.APIOpen))
		}
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
	})
}

func TestE034_CancelledWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set(subjects.APIOpen, silence)
		early := true
		d.set(subjects.APIKill, func(ctx context.Context, b []byte) ([]byte, error) {
			if early { // it overtook the open
				early = false
				return refuse(CodeNotFound)(ctx, b)
			}
			return wire.Encode(wire.ChannelReply{}), nil
		})
		l := d.lease(d.client(Options{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(500*time.Millisecond, cancel)
		start := time.Now()
		_, err := l.Open(ctx, Command{Argv: []string{"x"}})
		if took := time.Since(start); took > time.Second {
			t.Errorf("Open returned after %v", took)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v is not the context's", err)
		}
		time.Sleep(5 * time.Second)
		if n := d.asked(subjects.APIKill); n != 2 {
			t.Errorf("%d kills were asked for, want 2: one refused, one taken", n)
		}
		if n := d.openPorts(); n != 0 {
			t.Errorf("%d ports are left", n)
		}
	})
}

func TestOpen_UnansweredIsDeadlineExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set(subjects.APIOpen, silence)
		start := time.Now()
		_, err := d.lease(d.client(Options{})).Open(t.Context(), Command{Argv: []string{"x"}})
		if !errors.Is(err, ErrDeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("gave up after %v, want 10 s", took)
		}
	})
}

func TestOpen_NobodyAnswersIsSaidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set(subjects.APIOpen, noResponders)
		start := time.Now()
		_, err := d.lease(d.client(Options{})).Open(t.Context(), Command{Argv: []string{"x"}})
		if !errors.Is(err, ErrUnavailable) || time.Since(start) != 0 {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
		if n := d.asked(subjects.APIKill); n != 0 {
			t.Errorf("%d kills for a request that nobody got", n)
		}
	})
}

// A request that meets a connection that is down waits for its return.
func TestOpen_WaitsForTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = prints(t, "", wire.ExitedWith(0))
		l := d.lease(d.client(Options{}))
		d.up = false
		d.set(subjects.APIOpen, func(ctx context.Context, b []byte) ([]byte, error) {
			if !d.Up() {
				return refuse(CodeUnavailable)(ctx, b)
			}
			return d.open(ctx, b)
		})
		time.AfterFunc(3*time.Second, func() {
			d.mu.Lock()
			d.up = true
			d.mu.Unlock()
		})
		ch := mustOpen(t, l, Command{})
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
	})
}

func TestOpen_AnswerThatDoesNotFit(t *testing.T) {
	for name, spoil := range map[string]func(*wire.OpenReply){
		"another channel": func(r *wire.OpenReply) { r.Channel[0] ^= 1 },
		"no attach":       func(r *wire.OpenReply) { r.Attach = 0 },
		"short key":       func(r *wire.OpenReply) { r.KeyUp = r.KeyUp[:31] },
		"no key":          func(r *wire.OpenReply) { r.KeyDown = nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			d.set(subjects.APIOpen, func(ctx context.Context, b []byte) ([]byte, error) {
				reply, err := d.open(ctx, b)
				if err != nil {
					return nil, err
				}
				var r wire.OpenReply
				if err := wire.DecodeReply(reply, &r); err != nil {
					return nil, err
				}
				spoil(&r)
				return wire.Encode(r), nil
			})
			c := d.client(Options{})
			_, err := d.lease(c).Open(t.Context(), Command{Argv: []string{"x"}})
			if CodeOf(err) != CodeOpenFailed {
				t.Errorf("error %v", err)
			}
			c.Close() // waits for the kill
			if d.asked(subjects.APIKill) == 0 {
				t.Error("what may have been started is not killed")
			}
		})
	}
}

func TestG020_FallsBackOnChecks4To7Only(t *testing.T) {
	falls := map[Code]bool{
		CodeDriverNotRegistered: true, CodeDriverNoDuplex: true, CodeCapabilityDenied: true,
		CodeDuplexUnsupported: true, CodeMetadataIncomplete: true,
	}
	for _, code := range []Code{
		CodeDriverNotRegistered, CodeDriverNoDuplex, CodeCapabilityDenied, CodeDuplexUnsupported, CodeMetadataIncomplete,
		CodeInvalidArgument, CodePayloadTooLarge, CodeNotFound, CodeLeaseExpired, CodeLeaseReleased, CodeLeaseLost,
		CodeStaleEpoch, CodeRouteBusy, CodeQuotaExceeded, CodeUnavailable, CodeConflict, CodeWorkerNotRunning,
		CodeWorkerDraining, CodeSandboxNotCached, CodeOpenFailed, CodeDeadlineExceeded, CodePermissionDenied, CodeInternal, "SOMETHING_NEWER",
	} {
		t.Run(string(code), func(t *testing.T) {
			d := newDouble(t)
			d.script = prints(t, "ran", wire.ExitedWith(0))
			d.set(subjects.APIOpen, refuse(code))
			if code == CodeDriverNotRegistered {
				d.set(subjects.APIExecute, refuse(code))
			}
			in := strings.NewReader("input")
			ch, res, err := d.lease(d.client(Options{})).OpenOrExecute(t.Context(), Command{Argv: []string{"x"}}, WithStdin(in))
			want := 0
			if falls[code] {
				want = 1
			}
			if n := d.asked(subjects.APIExecute); n != want {
				t.Errorf("Execute was asked for %d times, want %d", n, want)
			}
			if n := d.asked(subjects.APIOpen); n != 1 {
				t.Errorf("Open was asked for %d times", n)
			}
			switch {
			case ch != nil:
				t.Error("a channel after a refusal")
			case falls[code] && code != CodeDriverNotRegistered:
				if err != nil || res == nil || res.Stdout.String() != "ran" {
					t.Errorf("result %v, error %v", res, err)
				}
			case CodeOf(err) != code || res != nil:
				t.Errorf("result %v, error %v", res, err)
			}
		})
	}
}

func TestG020_NoFallbackOnceOpen(t *testing.T) {
	d := newDouble(t)
	c := d.client(Options{})
	ch, res, err := d.lease(c).OpenOrExecute(t.Context(), Command{Argv: []string{"x"}})
	if ch == nil || res != nil || err != nil {
		t.Fatalf("%v, %v, %v", ch, res, err)
	}
	ch.end.Fail(wire.Errorf(CodeFenced, "lost"))
	if _, err := ch.Wait(); !errors.Is(err, ErrFenced) {
		t.Errorf("Wait: %v", err)
	}
	if n := d.asked(subjects.APIExecute); n != 0 {
		t.Errorf("Execute was asked for %d times", n)
	}
}

// badIDs are those of S-008 and S-010.
func badIDs() []string {
	return []string{
		"a.b", "*", ">", "a b", "a\tb", "a\r\nPUB x", "_INBOX", "$JS", "..", "-a", "a-",
		strings.Repeat("a", 64), strings.Repeat("a", 5000),
	}
}

func TestS008_BadIDsNeverReachNATS(t *testing.T) {
	for _, id := range badIDs() {
		d := newDouble(t)
		c := d.client(Options{})
		calls := map[string]error{}
		_, calls["tenant"] = newClient(Options{Tenant: id})
		_, calls["lease"] = c.GetLease(t.Context(), id)
		_, calls["plugin"] = c.AcquireLease(t.Context(), AcquireOptions{Plugin: id})
		_, calls["provider"] = c.AcquireLease(t.Context(), AcquireOptions{Provider: id})
		for what, err := range calls {
			if CodeOf(err) != CodeInvalidArgument {
				t.Errorf("%s %.20q: %v", what, id, err)
			}
		}
		if len(d.seen) != 0 {
			t.Errorf("%.20q: requests %v", id, d.seen)
		}
	}
	if _, err := newDouble(t).client(Options{}).GetLease(t.Context(), ""); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("empty lease id: %v", err)
	}
}

func TestOpen_BadCommandsNeverReachNATS(t *testing.T) {
	long := strings.Repeat("x", wire.MaxArg+1)
	for name, cmd := range map[string]Command{
		"no argv":          {},
		"empty command":    {Argv: []string{""}},
		"NUL":              {Argv: []string{"a\x00b"}},
		"E-029 long item":  {Argv: []string{"a", long}},
		"many items":       {Argv: make([]string, wire.MaxArgv+1)},
		"not UTF-8":        {Argv: []string{"a", "\xc3\x28"}},
		"env not UTF-8":    {Argv: []string{"a"}, Env: map[string]string{"A": "\xff"}},
		"env name":         {Argv: []string{"a"}, Env: map[string]string{"A B": ""}},
		"cwd NUL":          {Argv: []string{"a"}, Cwd: "a\x00"},
		"negative timeout": {Argv: []string{"a"}, Timeout: -1},
		"negative output":  {Argv: []string{"a"}, MaxOutput: -1},
		"terminal":         {Argv: []string{"a"}, Stdin: wire.StdinPTY},
		"both policies":    {Argv: []string{"a"}, OnDisconnect: OnDisconnect{Keep: true, KillAfter: time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			l := d.lease(d.client(Options{}))
			if _, err := l.Open(t.Context(), cmd); CodeOf(err) != CodeInvalidArgument {
				t.Errorf("Open: %v", err)
			}
			if _, err := l.Execute(t.Context(), cmd); CodeOf(err) != CodeInvalidArgument {
				t.Errorf("Execute: %v", err)
			}
			if len(d.seen) != 1 { // the get of the lease
				t.Errorf("requests %v", d.seen)
			}
		})
	}
	t.Run("1 MB of argv", func(t *testing.T) {
		d := newDouble(t)
		cmd := Command{Argv: []string{"a"}}
		for range 10 {
			cmd.Argv = append(cmd.Argv, strings.Repeat("x", 100_000))
		}
		if _, err := d.lease(d.client(Options{})).Open(t.Context(), cmd); CodeOf(err) != CodePayloadTooLarge {
			t.Errorf("Open: %v", err)
		}
	})
}

// Limits shorter than a millisecond must not become none.
func TestCommand_TimesRoundUp(t *testing.T) {
	e, err := Command{Argv: []string{"a"}, Timeout: time.Nanosecond, Grace: 1500 * time.Microsecond}.exec(wire.ModeDuplex)
	if err != nil || e.TimeoutMS != 1 || e.GraceMS != 2 {
		t.Errorf("timeout %d ms, grace %d ms, %v", e.TimeoutMS, e.GraceMS, err)
	}
}

func TestOpen_ContextThatHasEndedSendsNothing(t *testing.T) {
	d := newDouble(t)
	l := d.lease(d.client(Options{}))
	cause := errors.New("the caller's reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := l.Open(ctx, Command{Argv: []string{"x"}})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || len(d.seen) != 1 {
		t.Errorf("error %v, requests %v", err, d.seen)
	}
}

func TestStartFailed_IsAnOutcome(t *testing.T) {
	for _, exit := range []bool{true, false} {
		t.Run(fmt.Sprintf("with EXIT %t", exit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
					o := wire.StartFailedFor(wire.StartNotFound)
					if exit {
						w.Finish(o)
					}
					return &o
				}
				ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
				if o, err := ch.Wait(); o.String() != "start_failed(not_found)" || err != nil || o.ExitCode() != 127 {
					t.Errorf("Wait: %v, %v", o, err)
				}
				if b, err := io.ReadAll(ch); len(b) != 0 || err != nil {
					t.Errorf("read %q, %v", b, err)
				}
			})
		})
	}
}
