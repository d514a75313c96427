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
		t.Skip("takes a minute; set WEFT_SOAK=1")
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
