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

func TestC008_CutBeforeExitIsUnknown(t *testing.T) {
	const frames = 9 // 5 of stdout, 1 of stderr, 2 EOF, EXIT
	for cut := 1; cut <= frames; cut++ {
		t.Run(fmt.Sprint("after ", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
					for i := range 5 {
						say(t, w, wire.Stdout, fmt.Sprint("line ", i))
					}
					say(t, w, wire.Stderr, "oops")
					w.Finish(wire.ExitedWith(3))
					return nil
				}
				passed := 0
				d.filter = func(kind string, _ []byte) bool {
					if kind != "frame" {
						return passed < cut
					}
					passed++
					return passed <= cut
				}
				c := d.client(Options{GiveUpAfter: 20 * time.Second})
				ch := mustOpen(t, d.lease(c), Command{})
				if cut < frames { // for good
					d.mu.Lock()
					d.up = false
					d.mu.Unlock()
					c.onDown()
				}
				o, err := ch.Wait()
				if cut == frames {
					if o.String() != "exited(3)" || err != nil {
						t.Errorf("Wait: %v, %v", o, err)
					}
					return
				}
				if o.Kind != Unknown || LayerOf(o, err) != LayerTransport || CodeOf(err) == "" {
					t.Errorf("Wait: %v, %v, layer %q", o, err, LayerOf(o, err))
				}
				// Only the EOF frame, the seventh, makes the end of a stream.
				if b, err := io.ReadAll(ch); (CodeOf(err) == "") != (cut >= 7) {
					t.Errorf("reading ends with %q and %v: a silent end", b, err)
				}
			})
		})
	}
}

func TestC009_MissingByteIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		text := strings.Repeat("x", 9_999)
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			say(t, w, wire.Stdout, text)
			synctest.Wait()
			say(t, w, wire.Stdout, "y") // frame 2
			w.Finish(wire.ExitedWith(0))
			return nil
		}
		seq := 0
		d.filter = func(kind string, _ []byte) bool {
			if kind == "frame" {
				seq++
				return seq != 2
			}
			return false // no repair either
		}
		o := wire.ExitedWith(0)
		d.set(subjects.APIChannel, recorded(o, &wire.Totals{Stdout: 10_000}))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.forget()
		out, rerr := io.ReadAll(ch)
		got, err := ch.Wait()
		if got.Kind != DataLost || got.Bytes != 1 || got.Offset != 9_999 {
			t.Errorf("outcome %+v", got)
		}
		if CodeOf(err) == "" || LayerOf(got, err) != LayerTransport || len(out) != 9_999 || CodeOf(rerr) == "" {
			t.Errorf("Wait: %v; read %d bytes, %v", err, len(out), rerr)
		}
	})
}

// The record knows the whole of the output, and all of it came: only EXIT is missing.
func TestRecord_WholeOutputIsAnOrdinaryEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			say(t, w, wire.Stdout, "all")
			return nil
		}
		d.set(subjects.APIChannel, recorded(wire.ExitedWith(4), &wire.Totals{Stdout: 3}))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.forget()
		out, rerr := io.ReadAll(ch)
		o, err := ch.Wait()
		if o.String() != "exited(4)" || err != nil || string(out) != "all" || rerr != nil {
			t.Errorf("Wait: %v, %v; read %q, %v", o, err, out, rerr)
		}
	})
}

// A record that tells an exit but not how much was printed cannot be believed whole.
func TestRecord_WithoutTotalsIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set(subjects.APIChannel, recorded(wire.ExitedWith(0), nil))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.forget()
		if o, err := ch.Wait(); o.Kind != Unknown || CodeOf(err) != CodeChannelEnded {
			t.Errorf("Wait: %v, %v", o, err)
		}
	})
}

// The record says "ended" while the rest is under way to a reader that takes
// its time: nothing is cut off.
func TestRecord_DoesNotOvertakeASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		text := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, four windows
		written := make(chan struct{})
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			go func() {
				defer close(written)
				say(t, w, wire.Stdout, text)
				w.Finish(wire.ExitedWith(0))
			}()
			return nil
		}
		d.set(subjects.APIChannel, recorded(wire.ExitedWith(0), &wire.Totals{Stdout: uint64(len(text))}))
		d.setKeepalive(silence) // the worker is too busy to answer
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		time.Sleep(time.Minute)
		out, err := io.ReadAll(ch)
		if string(out) != text || err != nil {
			t.Errorf("read %d bytes of %d, %v", len(out), len(text), err)
		}
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
		<-written
	})
}

func TestE007_LayerOfEachDeath(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		d := newDouble(t)
		d.script = prints(t, "", wire.SignaledBy("KILL", false))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		if o, err := ch.Wait(); LayerOf(o, err) != LayerProcess || err != nil {
			t.Errorf("%v, %v: layer %q", o, err, LayerOf(o, err))
		}
	})
	t.Run("worker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newDouble(t)
			d.setKeepalive(noResponders)
			d.set(subjects.APIChannel, recorded(wire.Outcome{Kind: wire.WorkerLost}, nil))
			ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
			if o, err := ch.Wait(); LayerOf(o, err) != LayerWorker || o.Kind != WorkerLost || CodeOf(err) == "" {
				t.Errorf("%v, %v: layer %q", o, err, LayerOf(o, err))
			}
		})
	})
	t.Run("transport", func(t *testing.T) {
		d := newDouble(t)
		c := d.client(Options{})
		ch := mustOpen(t, d.lease(c), Command{})
		c.Close()
		if o, err := ch.Wait(); LayerOf(o, err) != LayerTransport || o.Kind != Unknown || CodeOf(err) == "" {
			t.Errorf("%v, %v: layer %q", o, err, LayerOf(o, err))
		}
	})
	t.Run("none", func(t *testing.T) {
		if l := LayerOf(wire.ExitedWith(0), nil); l != "" {
			t.Errorf("exited(0) is owed to %q", l)
		}
	})
}

func TestC038_TooManyProtocolErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			say(t, w, wire.Stdout, "good")
			return nil
		}
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		other := mustOpen(t, d.lease(ch.c), Command{})
		for range duplex.MaxProtocolErrors {
			ch.end.Frame([]byte("cut"))
		}
		buf := make([]byte, 16)
		if n, err := ch.Read(buf); string(buf[:n]) != "good" || err != nil {
			t.Fatalf("read %q, %v", buf[:n], err)
		}
		ch.end.Frame([]byte("cut"))
		o, err := ch.Wait()
		if o.String() != "limit_exceeded(protocol_errors)" || CodeOf(err) == "" || LayerOf(o, err) != LayerWorker {
			t.Errorf("Wait: %v, %v", o, err)
		}
		synctest.Wait()
		if d.asked(subjects.APIKill) != 1 {
			t.Error("the command is not ended")
		}
		if !other.running() {
			t.Error("another channel ended with it")
		}
	})
}

func TestC039_PanicStaysInItsChannel(t *testing.T) {
	script := func(t *testing.T) func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
		return func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			go func() {
				for _, s := range []string{"first", "second", "third"} {
					say(t, w, wire.Stdout, s)
					<-time.After(time.Second)
				}
				w.Finish(wire.ExitedWith(5))
			}()
			return nil
		}
	}
	for name, with := range map[string]func(func([]byte)) Option{
		"callback": func(f func([]byte)) Option { return WithMerged(func(k Chunk) { f(k.Data) }) },
		"writer": func(f func([]byte)) Option {
			return WithStdout(writerFunc(func(p []byte) (int, error) { f(p); return len(p), nil }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				d.script = script(t)
				var got []string
				ch := mustOpen(t, d.lease(d.client(Options{})), Command{}, with(func(p []byte) {
					got = append(got, string(p))
					if len(got) == 1 {
						panic("the caller's mistake")
					}
				}))
				o, err := ch.Wait()
				if o.String() != "exited(5)" || err == nil || !strings.Contains(err.Error(), "the caller's mistake") {
					t.Errorf("Wait: %v, %v", o, err)
				}
				if strings.Join(got, " ") != "first second third" {
					t.Errorf("chunks %q", got)
				}
			})
		})
	}
	t.Run("notice", func(t *testing.T) {
		c, err := newClient(Options{OnNotice: func(Notice) { panic("the caller's mistake") }})
		if err != nil {
			t.Fatal(err)
		}
		c.notify(Notice{})
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestWriterError_RestIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			go func() {
				say(t, w, wire.Stdout, strings.Repeat("x", 2<<20))
				say(t, w, wire.Stderr, "done")
				w.Finish(wire.ExitedWith(4))
			}()
			return nil
		}
		broken := errors.New("broken pipe")
		var errs strings.Builder
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{}, WithStderr(&errs),
			WithStdout(writerFunc(func(p []byte) (int, error) { return 0, broken })))
		o, err := ch.Wait()
		if o.String() != "exited(4)" || !errors.Is(err, broken) || errs.String() != "done" {
			t.Errorf("Wait: %v, %v; stderr %q", o, err, errs.String())
		}
	})
}

func TestClose_EndsTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.set(subjects.APIKill, func(context.Context, []byte) ([]byte, error) {
			for _, w := range d.workers {
				w.Finish(wire.Outcome{Kind: wire.EndedByRequest})
			}
			return wire.Encode(wire.ChannelReply{}), nil
		})
		if err := ch.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if o, err := ch.Wait(); o.Kind != EndedByRequest || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
		if d.openPorts() != 0 || len(ch.c.held()) != 0 {
			t.Error("something of the channel is left")
		}
		if err := ch.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// What nobody reads after the end holds the port for a while, not for ever.
func TestUnreadOutput_IsFreedAndStillReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.script = prints(t, "later", wire.ExitedWith(0))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Fatalf("Wait: %v, %v", o, err)
		}
		if d.openPorts() != 1 {
			t.Errorf("%d ports before the reading", d.openPorts())
		}
		time.Sleep(lingerTime)
		synctest.Wait()
		if d.openPorts() != 0 {
			t.Errorf("%d ports after %v", d.openPorts(), lingerTime)
		}
		if b, err := io.ReadAll(ch); string(b) != "later" || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
	})
}
