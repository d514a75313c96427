package client

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// realLease is a lease on a fabric of the test's own.
func realLease(t *testing.T, o Options) *Lease {
	t.Helper()
	s, err := fabric.Start(t.Context(), fabric.Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	o.InProcess = s.InProcess()
	c, err := Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	l, err := c.AcquireLease(t.Context(), AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The network delivers one open several times at once.
func TestC026_CopiesOfAnOpenAreOneCommand(t *testing.T) {
	l := realLease(t, Options{})
	exec, err := Command{Argv: []string{"sh", "-c", "echo line >>copies; cat copies"}}.exec(wire.ModeDuplex)
	if err != nil {
		t.Fatal(err)
	}
	req := wire.OpenRequest{
		Lease: l.ID(), Epoch: l.Info().Epoch, Channel: uuid.New(), Body: wire.Encode(exec),
		Credit: wire.DownCredit{Stdout: 1 << 16, Stderr: 1 << 16, FrameLimit: duplex.FrameWindow},
	}
	var mu sync.Mutex
	var replies []wire.OpenReply
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			var r wire.OpenReply
			if err := l.c.call(t.Context(), subjects.APIOpen, req, &r); err != nil {
				t.Errorf("open: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			replies = append(replies, r)
		})
	}
	all.Wait()
	for _, r := range replies {
		if r.Channel != req.Channel || r.Attach != 1 || !slices.Equal(r.KeyUp, replies[0].KeyUp) {
			t.Errorf("an answer differs: %+v", r)
		}
	}
	for {
		var r wire.ChannelReply
		if err := l.c.call(t.Context(), subjects.APIChannel, wire.ChannelRequest{Lease: l.ID(), Channel: req.Channel}, &r); err != nil {
			t.Fatal(err)
		}
		if r.Channel.State == recordEnded {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	res, err := l.Execute(t.Context(), Command{Argv: []string{"cat", "copies"}})
	if err != nil || res.Stdout.String() != "line\n" {
		t.Errorf("the file holds %q, %v", res.Stdout, err)
	}
	req.Body = wire.Encode(wire.Exec{Mode: wire.ModeDuplex, Argv: []string{"true"}})
	if err := l.c.call(t.Context(), subjects.APIOpen, req, &wire.OpenReply{}); CodeOf(err) != CodeConflict {
		t.Errorf("the same id with another command: %v", err)
	}
}

// A silent command whose reader is stopped outlives three missed keepalives and
// the grace after them, because none is missed.
func TestKeepalive_HoldsASilentChannel(t *testing.T) {
	if os.Getenv("WEFT_SOAK") == "" {
		t.Skip("SKIPPED: takes a minute; make soak runs it (WEFT_SOAK=1)")
	}
	var told notices
	l := realLease(t, Options{OnNotice: told.add})
	quiet, err := l.Open(t.Context(), Command{Argv: []string{"sh", "-c", "sleep 60; echo done"}})
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := l.Open(t.Context(), Command{Argv: []string{"sh", "-c", "head -c 4000000 /dev/zero; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(quiet); string(out) != "done\n" || err != nil {
		t.Errorf("read %q, %v", out, err)
	}
	if out, err := io.ReadAll(stopped); len(out) != 4_000_000 || err != nil {
		t.Errorf("read %d bytes, %v", len(out), err)
	}
	if o, err := stopped.Wait(); o.String() != "exited(3)" || err != nil {
		t.Errorf("Wait: %v, %v", o, err)
	}
	if k := told.kinds(); k != "" {
		t.Errorf("notices %q", k)
	}
}

// A real execution that is cancelled leaves no process behind.
func TestExecute_CancelEndsTheProcess(t *testing.T) {
	l := realLease(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	started := writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	start := time.Now()
	res, err := l.Execute(ctx, Command{Argv: []string{"sh", "-c", "echo $$ >pid; echo up; exec sleep 60"}}, WithStdout(started))
	if err == nil || res == nil || res.Success() || time.Since(start) > 20*time.Second {
		t.Fatalf("%+v, %v after %v", res, err, time.Since(start))
	}
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(20 * time.Millisecond) {
		res, err := l.Execute(t.Context(), Command{Argv: []string{"sh", "-c", "kill -0 $(cat pid) 2>&1"}})
		if err == nil && !res.Success() && strings.Contains(res.Stdout.String(), "No such process") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process is still there: %+v, %v", res, err)
		}
	}
}

// An observer has K_down alone. What it sends under that key, on the right
// subjects and in the right form, is dropped: neither process nor owner notice.
func TestC036_ObserverHasNoSay(t *testing.T) {
	l := realLease(t, Options{})
	ch, err := l.Open(t.Context(), Command{Argv: []string{"cat"}, Stdin: StdinPipe})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(text string) {
		t.Helper()
		if _, err := io.WriteString(ch, text); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(ch, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	echo("before")
	info, err := l.c.GetChannel(t.Context(), "", ch.ID())
	if err != nil {
		t.Fatal(err)
	}
	at, err := l.c.placeOf(t.Context(), info)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := l.c.askAttach(t.Context(), subjects.APIObserve, at, nil)
	if err != nil || len(reply.KeyUp) != 0 || reply.Attach != 0 {
		t.Fatalf("observe: %+v, %v", reply, err)
	}
	key := wire.Key(reply.KeyDown)
	p, err := l.c.openPort(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	buf := append(make([]byte, wire.HeaderSize), "stray"...)
	frame := wire.NewFrameKey(key, subjects.Up).Seal(buf, wire.Frame{Type: wire.FrameStdin, Attach: 1, Epoch: at.epoch.N, Seq: 2, Offset: 6})
	var msgs [][]byte
	for _, r := range []wire.Request{
		{N: 1 << 40, Verb: wire.VerbSignal, Signal: "KILL"}, {N: 1<<40 + 1, Verb: wire.VerbStop},
		{N: 1<<40 + 2, Verb: wire.VerbResize, Cols: 80, Rows: 24}, {N: 1<<40 + 3, Verb: wire.VerbDetach},
	} {
		b, err := wire.AppendRequest(nil, wire.ControlRequest, at.id, 1, wire.Encode(r), key)
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, b)
	}
	credit := wire.State{Kind: wire.ControlCredit, Channel: at.id, Attach: 1, Counter: 1 << 40, FrameLimit: 1 << 40}
	credit.Streams[wire.Stdout] = wire.Credit{Acked: 1 << 40, Limit: 1 << 41}
	msgs = append(msgs, credit.Append(nil, key))
	for range 3 {
		if err := p.Store(1, frame); err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			if err := p.Control(m); err != nil {
				t.Fatal(err)
			}
		}
		echo("still the owner's")
	}
	if err := ch.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if o, err := ch.Wait(); !o.Success() || err != nil || ch.Totals().Stdin != 6+3*17 {
		t.Errorf("Wait: %v, %v, totals %+v", o, err, ch.Totals())
	}
}
