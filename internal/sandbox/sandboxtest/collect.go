package sandboxtest

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// Result is what a command left behind.
type Result struct {
	Stdout, Stderr []byte
	Exit           wire.Outcome
	Held           bool
}

// Limit is the bound of every wait in the suite; a test that meets it fails.
const Limit = 30 * time.Second

// Box makes a driver's sandbox for a lease and destroys it with the test.
func Box(t testing.TB, d sandbox.Driver, lease string) sandbox.Sandbox {
	t.Helper()
	box, err := d.Provision(t.Context(), sandbox.Spec{Lease: lease, Tenant: "default", Environment: "test"})
	if err != nil {
		t.Fatalf("provision: %v", err)
	}
	t.Cleanup(func() {
		if err := box.Destroy(context.Background()); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return box
}

// Start starts cmd and closes it with the test.
func Start(t testing.TB, box sandbox.Sandbox, cmd sandbox.Command) *sandbox.Process {
	t.Helper()
	p, err := box.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("start %q: %v", cmd.Argv, err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// Sh is the command that runs script in a shell; args become $1 and on.
func Sh(script string, args ...string) sandbox.Command {
	return sandbox.Command{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...)}
}

// Finish reads p's output to the end as a worker does, with drain as the bound.
func Finish(t testing.TB, p *sandbox.Process, bound time.Duration) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	var (
		r       Result
		readers sync.WaitGroup
		ended   = make(chan struct{})
	)
	readers.Go(func() { r.Stdout = readAll(t, p.Stdout()) })
	readers.Go(func() { r.Stderr = readAll(t, p.Stderr()) })
	go func() { readers.Wait(); close(ended) }() // waited for below
	held, err := p.End(ctx, sandbox.NewDrain(bound), ended)
	if err != nil {
		t.Fatalf("end: %v", err)
	}
	<-ended
	r.Exit, r.Held = p.Exit(), held
	if err := p.Close(ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
	return r
}

// Run starts cmd, closes its standard input if it has one, and finishes it.
func Run(t testing.TB, box sandbox.Sandbox, cmd sandbox.Command) Result {
	t.Helper()
	p := Start(t, box, cmd)
	if p.Stdin() != nil {
		p.Stdin().Close()
	}
	return Finish(t, p, sandbox.DefaultDrainBound)
}

func readAll(t testing.TB, f *os.File) []byte {
	var all []byte
	for {
		buf, n, err := sandbox.ReadReady(f, func() []byte { return make([]byte, 64<<10) })
		all = append(all, buf[:n]...)
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		if err != nil {
			t.Errorf("read: %v", err)
			return all
		}
	}
}

// Line reads one line that the command prints as a sign; the rest stays unread.
func Line(t testing.TB, f *os.File) string {
	t.Helper()
	if err := f.SetReadDeadline(time.Now().Add(Limit)); err != nil {
		t.Fatal(err)
	}
	var line []byte
	for {
		buf, n, err := sandbox.ReadReady(f, func() []byte { return make([]byte, 1) })
		if err != nil {
			t.Fatalf("waiting for a line, got %q: %v", line, err)
		}
		if n == 1 && buf[0] == '\n' {
			break
		}
		line = append(line, buf[:n]...)
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return string(line)
}
