package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options with every directory below one of the test's.
func options(t *testing.T) (o fabric.Options, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	t.Setenv("TMPDIR", tmp)
	return fabric.Options{Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)}, tmp
}

func start(t *testing.T, o fabric.Options) *fabric.Stack {
	t.Helper()
	s, err := fabric.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("%s is left in %s", e.Name(), dir)
	}
}

// echo runs a command on a new lease, which a registered worker grants at once.
func echo(t *testing.T, o client.Options) {
	t.Helper()
	c, err := client.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lease, err := c.AcquireLease(t.Context(), client.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ch, err := lease.Open(t.Context(), client.Command{Argv: []string{"cat"}},
		client.WithStdin(strings.NewReader("hello")), client.WithStdout(&out))
	if err != nil {
		t.Fatal(err)
	}
	if o, err := ch.Wait(); err != nil || !o.Success() || out.String() != "hello" {
		t.Fatalf("cat: %v, %v, %q", o, err, out.String())
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutPort(t *testing.T) {
	o, tmp := options(t)
	began := time.Now()
	s := start(t, o)
	t.Logf("up after %v", time.Since(began))
	if s.URL() != "" {
		t.Errorf("it listens at %s", s.URL())
	}
	echo(t, client.Options{InProcess: s.InProcess(), Auth: client.Auth{Token: s.Token()}})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	empty(t, tmp)
	if s.Err() != nil {
		t.Errorf("a stack that was stopped says %v", s.Err())
	}
}

func TestWithPort(t *testing.T) {
	o, tmp := options(t)
	o.Listen, o.RuntimeDir = "127.0.0.1:0", filepath.Join(t.TempDir(), "run")
	s := start(t, o)
	state, err := runfile.Current(o.RuntimeDir)
	if err != nil || state.URL != s.URL() || state.Token != s.Token() {
		t.Fatalf("state file: %v, %v; want %s", state, err, s.URL())
	}
	echo(t, client.Options{URL: state.URL, Auth: client.Auth{Token: state.Token}})
	if _, err := client.Connect(t.Context(), client.Options{URL: state.URL}); !errors.Is(err, client.ErrUnauthenticated) {
		t.Errorf("without the token: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := runfile.Current(o.RuntimeDir); !errors.Is(err, runfile.ErrNone) {
		t.Errorf("state file after the stop: %v", err)
	}
	empty(t, tmp)
}

func TestDirIsKept(t *testing.T) {
	o, tmp := options(t)
	o.Dir = filepath.Join(t.TempDir(), "weft")
	var routes [2]string
	for i := range routes {
		s := start(t, o)
		c, err := client.Connect(t.Context(), client.Options{InProcess: s.InProcess()})
		if err != nil {
			t.Fatal(err)
		}
		workers, err := c.Workers(t.Context())
		c.Close()
		if err != nil || len(workers) != 1 || workers[0].State != "live" {
			t.Fatalf("workers: %+v, %v", workers, err)
		}
		routes[i] = workers[0].Route
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if routes[0] == "" || routes[0] != routes[1] {
		t.Errorf("routes of two runs: %q", routes)
	}
	empty(t, tmp)
}

func TestInlineDriver(t *testing.T) {
	o, _ := options(t)
	o.Worker.Driver = "inline"
	s := start(t, o)
	c, err := client.Connect(t.Context(), client.Options{InProcess: s.InProcess()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lease, err := c.AcquireLease(t.Context(), client.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Open(t.Context(), client.Command{Argv: []string{"true"}}); !errors.Is(err, client.ErrDuplexUnsupported) {
		t.Errorf("open: %v", err)
	}
	if res, err := lease.Execute(t.Context(), client.Command{Argv: []string{"echo", "hi"}}); err != nil || res.Stdout.String() != "hi\n" {
		t.Errorf("execute: %+v, %v", res, err)
	}
}

// Whatever goes wrong has a code and leaves nothing.
func TestBadStarts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		change func(*fabric.Options)
		ctx    context.Context
		code   wire.Code
	}{
		"driver":    {change: func(o *fabric.Options) { o.Worker.Driver = "magic" }, code: wire.CodeUnavailable},
		"port":      {change: func(o *fabric.Options) { o.Listen = taken.Addr().String() }, code: wire.CodeConflict},
		"listen":    {change: func(o *fabric.Options) { o.Listen = "nowhere" }, code: wire.CodeInvalidArgument},
		"tenant":    {change: func(o *fabric.Options) { o.Tenants = []string{"a.b"} }, code: wire.CodeInvalidArgument},
		"plugin":    {change: func(o *fabric.Options) { o.Worker.Plugin = "a b" }, code: wire.CodeInvalidArgument},
		"slots":     {change: func(o *fabric.Options) { o.Worker.Slots = -1 }, code: wire.CodeInvalidArgument},
		"directory": {change: func(o *fabric.Options) { o.Dir = file }, code: wire.CodeInvalidArgument},
		"cancelled": {change: func(*fabric.Options) {}, ctx: cancelled, code: wire.CodeDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			o, tmp := options(t)
			c.change(&o)
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			s, err := fabric.Start(ctx, o)
			if err == nil {
				t.Fatal("it started", s.Stop())
			}
			if wire.CodeOf(err) != c.code {
				t.Errorf("%v; want %s", err, c.code)
			}
			empty(t, tmp)
		})
	}
}
