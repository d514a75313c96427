package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
)

// lines is a command that echoes every line of its input with its number.
func lines() client.Command {
	return piped("sh", "-c", `i=0; while read -r x; do i=$((i+1)); echo "$i: $x"; done`)
}

// keep makes a command outlive its client.
func keep(c client.Command) client.Command {
	c.OnDisconnect = client.OnDisconnect{Keep: true}
	return c
}

func attach(t testing.TB, c *client.Client, id string, o client.AttachOptions, opts ...client.Option) *client.Channel {
	t.Helper()
	ch, err := c.Attach(t.Context(), "", id, o, opts...)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	return ch
}

func reads(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

func writes(t testing.TB, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatalf("write %q: %v", text, err)
	}
}

// waits is Wait with a bound.
func waits(t testing.TB, ch *client.Channel) (client.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	return ch.WaitContext(ctx)
}

func TestC030_TheOldHolderIsFenced(t *testing.T) {
	s := stack(t, fabric.Options{})
	one, two := connect(t, s, client.Options{}), connect(t, s, client.Options{})
	a := open(t, acquire(t, one), lines())
	writes(t, a, "first\nsecond\n")
	reads(t, a, "1: first\n2: second\n")

	b := attach(t, two, a.ID(), client.AttachOptions{})
	if o, err := waits(t, a); o.Kind != client.Unknown || !errors.Is(err, client.ErrFenced) || client.LayerOf(o, err) != client.LayerTransport {
		t.Errorf("the old holder's Wait: %v, %v", o, err)
	}
	if n, err := a.Write([]byte("stray\n")); n != 0 || !errors.Is(err, client.ErrFenced) {
		t.Errorf("the old holder writes %d bytes: %v", n, err)
	}
	if _, err := a.Read(make([]byte, 8)); !errors.Is(err, client.ErrFenced) {
		t.Errorf("the old holder reads: %v", err)
	}
	if err := a.Signal(t.Context(), "TERM"); err == nil {
		t.Error("the old holder's signal was taken")
	}
	at := b.AttachedAt()
	if at.Stdout > 19 || at.Stdin != 13 {
		t.Fatalf("attached at %+v", at)
	}
	reads(t, b, "1: first\n2: second\n"[at.Stdout:]) // what the old holder had not acknowledged yet
	if b.StdinAccepted() != 13 || b.TakenByProcess() != 13 {
		t.Errorf("accepted %d, taken %d", b.StdinAccepted(), b.TakenByProcess())
	}
	writes(t, b, "third\n")
	reads(t, b, "3: third\n")
	if err := a.Close(); err != nil {
		t.Errorf("Close of the old holder: %v", err)
	}
	_ = b.CloseWrite()
	ends(t, b, "exited(0)")
	if p := b.Position(); p.Stdout != 28 || p.Stdin != 19 {
		t.Errorf("position %+v", p)
	}
}

func TestDetach_TheNextGoesOnWhereItStopped(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	l := acquire(t, c)
	a := open(t, l, keep(lines()))
	writes(t, a, "one\n")
	reads(t, a, "1: one\n")
	writes(t, a, "two\n")
	reads(t, a, "2")
	if err := a.Detach(t.Context()); err != nil {
		t.Fatalf("Detach: %v", err)
	}
	if o, err := waits(t, a); o.Kind != client.Unknown || !errors.Is(err, client.ErrChannelEnded) {
		t.Errorf("Wait: %v, %v", o, err)
	}
	if n, err := a.Read(make([]byte, 8)); n != 0 || err == nil {
		t.Errorf("read after Detach: %d, %v", n, err)
	}
	if n := a.Position().Stdout; n != 8 {
		t.Errorf("position %d", n)
	}
	if err := a.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	b := attach(t, c, a.ID(), client.AttachOptions{})
	if p := b.AttachedAt(); p.Stdout != 8 || p.Stdin != 8 {
		t.Errorf("attached at %+v", p)
	}
	_ = b.CloseWrite()
	if rest, err := io.ReadAll(b); string(rest) != ": two\n" || err != nil {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	ends(t, b, "exited(0)")
}

func TestResume_WithoutACoordinator(t *testing.T) {
	s := stack(t, fabric.Options{})
	one, two := connect(t, s, client.Options{}), connect(t, s, client.Options{})
	a := open(t, acquire(t, one), keep(lines()))
	writes(t, a, "one\n")
	reads(t, a, "1: one\n")
	saved := a.Save()
	one.Close()

	b, err := two.Resume(t.Context(), saved, client.AttachOptions{From: &saved.Position})
	if err != nil {
		t.Fatalf("Resume: %v", err)
	}
	if p := b.AttachedAt(); p.Stdout != 7 || p.Stdin != 4 {
		t.Errorf("attached at %+v", p)
	}
	writes(t, b, "two\n")
	reads(t, b, "2: two\n")
	if _, err := two.Resume(t.Context(), saved, client.AttachOptions{}); client.CodeOf(err) != client.CodeFenced {
		t.Errorf("with the older attach: %v", err)
	}
	// The record's number lags behind; the gate finds the next one all the same.
	c := attach(t, two, a.ID(), client.AttachOptions{})
	if o, err := waits(t, b); o.Kind != client.Unknown || !errors.Is(err, client.ErrFenced) {
		t.Errorf("Wait: %v, %v", o, err)
	}
	_ = c.CloseWrite()
	ends(t, c, "exited(0)")

	for what, change := range map[string]func(*client.Saved){
		"tenant": func(s *client.Saved) { s.Tenant = "other" }, "key": func(s *client.Saved) { s.KeyUp = s.KeyUp[1:] },
		"channel": func(s *client.Saved) { s.Channel = "x" }, "attach": func(s *client.Saved) { s.Attach = 0 },
		"route": func(s *client.Saved) { s.Route = "a.b" }, "lease": func(s *client.Saved) { s.Lease = "*" },
	} {
		bad := saved
		change(&bad)
		if _, err := two.Resume(t.Context(), bad, client.AttachOptions{}); client.CodeOf(err) != client.CodeInvalidArgument {
			t.Errorf("a bad %s: %v", what, err)
		}
	}
}

// What the earlier client has taken beyond From is counted, never skipped in silence.
func TestAttach_FromBehindWhatWasTaken(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	a := open(t, acquire(t, c), keep(lines()))
	writes(t, a, "one\n")
	reads(t, a, "1: one\n")
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Attach(t.Context(), "", a.ID(), client.AttachOptions{From: &client.Position{Stdout: 100}}); client.CodeOf(err) != client.CodeInvalidArgument {
		t.Errorf("from what was never written: %v", err)
	}
	b := attach(t, c, a.ID(), client.AttachOptions{From: &client.Position{Stdout: 3}})
	writes(t, b, "two\n")
	_ = b.CloseWrite()
	if rest, err := io.ReadAll(b); string(rest) != "2: two\n" || err != nil {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	if o, err := waits(t, b); o.Kind != client.DataLost || o.Bytes != 4 || o.Offset != 3 || err == nil {
		t.Errorf("Wait: %v, %v", o, err)
	}
}

func TestAttach_Refusals(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	l := acquire(t, c)
	ch := open(t, l, piped("cat"))
	for id, want := range map[string]client.Code{
		"x": client.CodeInvalidArgument, "": client.CodeInvalidArgument,
		strings.ToUpper(ch.ID()):               client.CodeInvalidArgument,
		"7d444840-9dc0-41d1-b245-5ffdce74fad2": client.CodeNotFound,
	} {
		if _, err := c.Attach(t.Context(), "", id, client.AttachOptions{}); client.CodeOf(err) != want {
			t.Errorf("attach to %q: %v", id, err)
		}
		if _, err := c.Observe(t.Context(), "", id); client.CodeOf(err) != want {
			t.Errorf("observe %q: %v", id, err)
		}
		if _, err := c.KillChannel(t.Context(), l.ID(), id); client.CodeOf(err) != want {
			t.Errorf("kill %q: %v", id, err)
		}
	}
	if _, err := c.Attach(t.Context(), "*", ch.ID(), client.AttachOptions{}); client.CodeOf(err) != client.CodeInvalidArgument {
		t.Errorf("a bad lease: %v", err)
	}
	if _, err := c.Attach(t.Context(), "", ch.ID(), client.AttachOptions{From: &client.Position{Stdout: -1}}); client.CodeOf(err) != client.CodeInvalidArgument {
		t.Errorf("a negative offset: %v", err)
	}
	// No refusal has touched the holder.
	writes(t, ch, "still")
	reads(t, ch, "still")
	if info, err := c.KillChannel(t.Context(), "", ch.ID()); err != nil || info.Lease != l.ID() {
		t.Errorf("kill: %+v, %v", info, err)
	}
	if o, err := waits(t, ch); o.Kind != client.EndedByRequest || err != nil {
		t.Errorf("Wait: %v, %v", o, err)
	}
}

// A channel whose command has ended, but whose output nobody has taken, is still
// with its worker; later only the log has it.
func TestAttach_AfterTheEnd(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	a := open(t, acquire(t, c), keep(sh("seq 1 1000; echo oops >&2; exit 3")))
	if err := a.Detach(t.Context()); err != nil && client.CodeOf(err) != client.CodeChannelEnded {
		t.Fatal(err)
	}
	want := upTo1000()
	var out, errs bytes.Buffer
	b := attach(t, c, a.ID(), client.AttachOptions{From: &client.Position{}}, client.WithStdout(&out), client.WithStderr(&errs))
	ends(t, b, "exited(3)")
	if out.String() != want || errs.String() != "oops\n" {
		t.Errorf("%d bytes of stdout, stderr %q", out.Len(), errs.String())
	}
	// The worker forgets it as soon as EXIT is acknowledged.
	recorded(t, c, a.ID())
	again := attach(t, c, a.ID(), client.AttachOptions{})
	rest, err := io.ReadAll(again)
	at := again.AttachedAt()
	if err != nil || want[at.Stdout:] != string(rest) {
		t.Errorf("from offset %d the log gave %d bytes, %v", at.Stdout, len(rest), err)
	}
	_, _ = io.Copy(io.Discard, again.Stderr())
	ends(t, again, "exited(3)")
	if _, err := again.Write([]byte("x")); err == nil {
		t.Error("a command that has ended takes input")
	}
}

// upTo1000 is what seq 1 1000 prints.
func upTo1000() string {
	var b strings.Builder
	for i := 1; i <= 1000; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestWholeStdin_SkipsWhatWasTaken(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	input := string(random(300_000))
	var out bytes.Buffer
	a := open(t, acquire(t, c), keep(piped("cat")), client.WithStdout(&out))
	writes(t, a, input[:100_001])
	for a.TakenByProcess() < 100_001 {
		wait(t, 10*time.Millisecond)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := int64(out.Len())
	b := attach(t, c, a.ID(), client.AttachOptions{From: &client.Position{Stdout: first}},
		client.WithWholeStdin(strings.NewReader(input)), client.WithStdout(&out))
	ends(t, b, "exited(0)")
	if out.String() != input {
		t.Errorf("%d bytes, or others", out.Len())
	}
}

// recorded waits until the end of a channel is on record.
func recorded(t testing.TB, c *client.Client, id string) client.ChannelInfo {
	t.Helper()
	for deadline := time.Now().Add(bound); ; wait(t, 10*time.Millisecond) {
		info, err := c.GetChannel(t.Context(), "", id)
		if err != nil {
			t.Fatal(err)
		}
		if info.State == "ended" {
			return info
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v the record says %s", bound, info.State)
		}
	}
}
