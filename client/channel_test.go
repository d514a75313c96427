package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestReadContext_LosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		buf := make([]byte, 8)
		if n, err := ch.ReadContext(ctx, buf); n != 0 || !errors.Is(err, context.DeadlineExceeded) || CodeOf(err) != CodeDeadlineExceeded {
			t.Errorf("read %d, %v", n, err)
		}
		say(t, d.workers[ch.ID()], wire.Stdout, "late")
		if n, err := ch.Read(buf); string(buf[:n]) != "late" || err != nil {
			t.Errorf("read %q, %v", buf[:n], err)
		}
	})
}

func TestWrite_WithoutStdin(t *testing.T) {
	d := newDouble(t)
	ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
	if n, err := ch.Write([]byte("x")); n != 0 || !errors.Is(err, ErrStdinClosed) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if err := ch.CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v", err)
	}
}

func TestWrite_BlockedWriterIsFreedByTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{Stdin: StdinPipe})
		wrote := make(chan error, 1)
		go func() {
			_, err := ch.Write(make([]byte, 1<<20)) // C-018: four windows
			wrote <- err
		}()
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Fatalf("a write of four windows nobody reads returned: %v", err)
		default:
		}
		d.workers[ch.ID()].Finish(wire.Outcome{Kind: wire.EndedByRequest})
		if err := <-wrote; !errors.Is(err, ErrChannelEnded) {
			t.Errorf("the blocked write ended with %v", err)
		}
	})
}

func TestC013_StdinClosedTellsTheCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{Stdin: StdinPipe})
		if _, err := ch.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		w := d.workers[ch.ID()]
		b, err := w.Next(t.Context(), wire.Stdin)
		if err != nil {
			t.Fatal(err)
		}
		w.Take(wire.Stdin, len(b))
		w.Discard(wire.Stdin)
		synctest.Wait()
		_, err = ch.Write([]byte("more"))
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeStdinClosed || e.Details["taken"] != "1" {
			t.Errorf("write: %v", err)
		}
		w.Finish(wire.ExitedWith(0))
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
		if n := ch.TakenByProcess(); n != 1 {
			t.Errorf("TakenByProcess %d", n)
		}
	})
}

func TestWithStdin_ReaderErrors(t *testing.T) {
	for name, c := range map[string]struct {
		r    io.Reader
		want string
	}{
		"error": {iotest.ErrReader(errors.New("disk on fire")), "disk on fire"},
		"panic": {readerFunc(func([]byte) (int, error) { panic("oh no") }), "oh no"},
		"end":   {strings.NewReader("abc"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
					if e.Stdin != StdinPipe {
						t.Errorf("stdin is %q", e.Stdin)
					}
					go func() {
						for {
							b, err := w.Next(context.Background(), wire.Stdin)
							if err != nil { // the end of the input came
								w.Finish(wire.ExitedWith(0))
								return
							}
							w.Take(wire.Stdin, len(b))
						}
					}()
					return nil
				}
				ch := mustOpen(t, d.lease(d.client(Options{})), Command{}, WithStdin(c.r))
				o, err := ch.Wait()
				if !o.Success() {
					t.Errorf("outcome %v", o)
				}
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if _, err := ch.Write([]byte("x")); CodeOf(err) != CodeInvalidArgument {
					t.Errorf("Write beside WithStdin: %v", err)
				}
			})
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestOptions_Conflicts(t *testing.T) {
	d := newDouble(t)
	l := d.lease(d.client(Options{}))
	for name, opts := range map[string][]Option{
		"merged and stdout": {WithMerged(func(Chunk) {}), WithStdout(io.Discard)},
		"negative":          {WithOutputKept(-1)},
	} {
		if _, err := l.Open(t.Context(), Command{Argv: []string{"x"}}, opts...); CodeOf(err) != CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Open(t.Context(), Command{Argv: []string{"x"}, Stdin: StdinNone}, WithStdin(strings.NewReader(""))); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("stdin none with a reader: %v", err)
	}
	if _, err := l.Execute(t.Context(), Command{Argv: []string{"x"}}, WithMerged(func(Chunk) {})); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("Execute with WithMerged: %v", err)
	}
}

func TestReaders_SayWhyThereIsNothing(t *testing.T) {
	d := newDouble(t)
	l := d.lease(d.client(Options{}))
	pumped := mustOpen(t, l, Command{}, WithStdout(io.Discard))
	if _, err := pumped.Read(make([]byte, 1)); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("reading a pumped stream: %v", err)
	}
	ch := mustOpen(t, l, Command{})
	ch.CloseStdout()
	if _, err := ch.Read(make([]byte, 1)); CodeOf(err) != CodeChannelEnded {
		t.Errorf("reading a closed stream: %v", err)
	}
	if err := ch.Stderr().Close(); err != nil {
		t.Error(err)
	}
	if _, err := ch.Stderr().Read(make([]byte, 1)); CodeOf(err) != CodeChannelEnded {
		t.Errorf("reading closed stderr: %v", err)
	}
}

func TestSignal_AfterTheEndTellsTheOutcome(t *testing.T) {
	d := newDouble(t)
	d.script = prints(t, "", wire.ExitedWith(9))
	ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
	if _, err := ch.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{ch.Signal(t.Context(), "SIGTERM"), ch.Stop(t.Context(), 0)} { // E-017
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeChannelEnded || e.Details["outcome"] != "exited(9)" {
			t.Errorf("error %v", err)
		}
	}
	if err := ch.Signal(t.Context(), "NOSUCH"); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("a signal that is none: %v", err)
	}
}

func TestSignal_GoesByName(t *testing.T) {
	d := newDouble(t)
	ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
	if err := ch.Signal(t.Context(), "SIGINT"); err != nil {
		t.Errorf("Signal: %v", err)
	}
	if err := ch.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func TestWaitContext_GivesUpAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o, err := ch.WaitContext(ctx); o.Kind != Unknown || !errors.Is(err, ErrDeadlineExceeded) {
			t.Errorf("WaitContext: %v, %v", o, err)
		}
		if !ch.running() {
			t.Error("the channel ended with the wait")
		}
	})
}

func TestWriteTo_ReturnsTheWritersError(t *testing.T) {
	d := newDouble(t)
	d.script = prints(t, "hello", wire.ExitedWith(0))
	l := d.lease(d.client(Options{}))
	broken := errors.New("broken")
	if _, err := io.Copy(writerFunc(func([]byte) (int, error) { return 0, broken }), mustOpen(t, l, Command{})); err != broken {
		t.Errorf("error %v", err)
	}
	var b strings.Builder
	if n, err := io.Copy(&b, mustOpen(t, l, Command{})); n != 5 || err != nil || b.String() != "hello" {
		t.Errorf("copied %d %q, %v", n, b.String(), err)
	}
}
