package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestE011_WaitsAsLongAsTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
			if e.TimeoutMS != 3500 || e.Mode != wire.ModeExecute {
				t.Errorf("asked for %+v", e)
			}
			time.AfterFunc(3*time.Second, func() { prints(t, "slow", wire.ExitedWith(0))(w, e) })
			return nil
		}
		l := d.lease(d.client(Options{RequestTimeout: 2 * time.Second}))
		res, err := l.Execute(t.Context(), Command{Argv: []string{"x"}, Timeout: 3500 * time.Millisecond})
		if err != nil || !res.Success() || res.Stdout.String() != "slow" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestE006_UnknownIsNoSuccess(t *testing.T) {
	d := newDouble(t)
	d.script = prints(t, "x", wire.Outcome{Kind: wire.Unknown})
	res, err := d.lease(d.client(Options{})).Execute(t.Context(), Command{Argv: []string{"x"}})
	if err != nil || res.Success() || res.Outcome.Kind != Unknown || res.Outcome.ExitCode() != 255 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestE023_HeadAndTail(t *testing.T) {
	d := newDouble(t)
	d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
		go func() {
			say(t, w, wire.Stdout, string(numbered(10_000_000)))
			w.Finish(wire.ExitedWith(7))
		}()
		return nil
	}
	res, err := d.lease(d.client(Options{})).Execute(t.Context(), Command{Argv: []string{"x"}}, WithOutputKept(65_536))
	if err != nil {
		t.Fatal(err)
	}
	want := numbered(10_000_000)
	o := res.Stdout
	if !bytes.Equal(o.Head, want[:32_768]) || !bytes.Equal(o.Tail, want[len(want)-32_768:]) || o.Omitted != 9_934_464 {
		t.Errorf("head %d, tail %d, omitted %d", len(o.Head), len(o.Tail), o.Omitted)
	}
	if !res.Truncated() || res.Outcome.String() != "exited(7)" || !strings.Contains(o.String(), "[9934464 bytes left out]") {
		t.Errorf("truncated %t, outcome %v", res.Truncated(), res.Outcome)
	}
}

// numbered is n bytes in which every place can be told from others.
func numbered(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + i>>16*29)
	}
	return b
}

func TestE022_InputInTheRequestOrStreamed(t *testing.T) {
	for name, c := range map[string]struct {
		in      io.Reader
		stdin   StdinKind
		data    int
		streams int
	}{
		"none":       {nil, StdinNone, 0, 0},
		"empty":      {strings.NewReader(""), StdinNone, 0, 0},
		"small":      {strings.NewReader("abc"), StdinPipe, 3, 0},
		"at most":    {bytes.NewReader(make([]byte, maxStdinBody)), StdinPipe, maxStdinBody, 0},
		"one more":   {bytes.NewReader(make([]byte, maxStdinBody+1)), StdinPipe, 0, maxStdinBody + 1},
		"5 MiB":      {bytes.NewReader(make([]byte, 5<<20)), StdinPipe, 0, 5 << 20},
		"not memory": {io.LimitReader(zeros{}, 10), StdinPipe, 0, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				streamed := 0
				d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
					if e.Stdin != c.stdin || len(e.StdinData) != c.data {
						t.Errorf("stdin %q with %d bytes", e.Stdin, len(e.StdinData))
					}
					if e.Stdin != StdinPipe || len(e.StdinData) > 0 {
						w.Finish(wire.ExitedWith(0))
						return nil
					}
					go func() {
						for {
							b, err := w.Next(context.Background(), wire.Stdin)
							if err != nil {
								w.Finish(wire.ExitedWith(0))
								return
							}
							streamed += len(b)
							w.Take(wire.Stdin, len(b))
						}
					}()
					return nil
				}
				var opts []Option
				if c.in != nil {
					opts = append(opts, WithStdin(c.in))
				}
				res, err := d.lease(d.client(Options{})).Execute(t.Context(), Command{Argv: []string{"x"}}, opts...)
				if err != nil || !res.Success() || streamed != c.streams {
					t.Errorf("%+v, %v, %d bytes streamed", res, err, streamed)
				}
			})
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestE025_BrokenLiveFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		var all strings.Builder
		for i := range 100 {
			all.WriteString(strings.Repeat("l", i+1) + "\n")
		}
		d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
			go func() {
				for line := range strings.Lines(all.String()) {
					say(t, w, wire.Stdout, line)
					time.Sleep(time.Millisecond)
				}
				w.Finish(wire.ExitedWith(0))
			}()
			return nil
		}
		var live strings.Builder
		lines, refused, broken := 0, 0, errors.New("the feed broke")
		res, err := d.lease(d.client(Options{})).Execute(t.Context(), Command{Argv: []string{"x"}},
			WithStdout(writerFunc(func(p []byte) (int, error) {
				if lines == 50 {
					refused++
					return 0, broken
				}
				lines++
				return live.Write(p)
			})))
		if !errors.Is(err, broken) || !res.Success() || res.Stdout.String() != all.String() {
			t.Errorf("%v, %v, %d bytes", res.Outcome, err, len(res.Stdout.String()))
		}
		if refused != 1 {
			t.Errorf("the broken feed was written to %d times", refused)
		}
		if !strings.HasPrefix(all.String(), live.String()) || strings.Count(live.String(), "\n") != 50 {
			t.Errorf("live got %d lines", strings.Count(live.String(), "\n"))
		}
	})
}

func TestExecute_CancelKillsAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, e *wire.Exec) *wire.Outcome {
			say(t, w, wire.Stdout, "so far")
			return nil
		}
		l := d.lease(d.client(Options{}))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		res, err := l.Execute(ctx, Command{Argv: []string{"x"}})
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("returned after %v", took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrDeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if res == nil || res.Success() || res.Outcome.Kind != Unknown || res.Stdout.String() != "so far" {
			t.Errorf("result %+v", res)
		}
		synctest.Wait()
		if d.asked(subjects.APIKill) != 1 || d.openPorts() != 0 {
			t.Errorf("%d kills, %d ports", d.asked(subjects.APIKill), d.openPorts())
		}
	})
}

func TestSink_KeepsHeadAndTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.IntRange(0, 40).Draw(t, "keep")
		s := newSink(keep, nil)
		var all []byte
		for _, n := range rapid.SliceOf(rapid.IntRange(0, 60)).Draw(t, "writes") {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(len(all) + i)
			}
			all = append(all, p...)
			if got, err := s.Write(p); got != n || err != nil {
				t.Fatalf("Write: %d, %v", got, err)
			}
		}
		o, _ := s.output()
		head := min(len(all), keep/2)
		tail := min(len(all)-head, keep-keep/2)
		if !bytes.Equal(o.Head, all[:head]) || !bytes.Equal(o.Tail, all[len(all)-tail:]) {
			t.Fatalf("keep %d of %d: head %d, tail %d", keep, len(all), len(o.Head), len(o.Tail))
		}
		if int(o.Omitted) != len(all)-head-tail {
			t.Fatalf("omitted %d", o.Omitted)
		}
		if o.Omitted == 0 && !bytes.Equal(o.Bytes(), all) {
			t.Fatal("Bytes differ")
		}
	})
}
