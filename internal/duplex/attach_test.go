package duplex_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/duplex/linktest"
	"github.com/weft-fabric/weft/internal/wire"
)

// readSome reads up to n bytes of a stream.
func readSome(ctx context.Context, e *duplex.End, st wire.Stream, n int) []byte {
	buf := make([]byte, n)
	k := 0
	for k < n {
		m, err := e.Read(ctx, st, buf[k:])
		if err != nil {
			break
		}
		k += m
	}
	return buf[:k]
}

// TestC031_ANewClientGoesOnWhereTheOldOneWas: the first half, cut at the offset
// that the second attach is told, and the second half are the exact output.
func TestC031_ANewClientGoesOnWhereTheOldOneWas(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 31))
			n := linktest.New(linktest.Config{Faults: linktest.Faults{
				Seed: seed, Delay: time.Millisecond, Jitter: time.Duration(1+r.IntN(20)) * time.Millisecond,
				DropLive: r.Float64() * 0.2, DropControl: r.Float64() * 0.2, DropAck: r.Float64() * 0.2,
			}})
			ctx := t.Context()
			out, errs := pattern(600_000, seed), pattern(50_000, seed+1000)
			var wg sync.WaitGroup
			write := func(st wire.Stream, data []byte) {
				own := rand.New(rand.NewPCG(seed, uint64(st)))
				for p := data; len(p) > 0; {
					k := min(len(p), 1+own.IntN(9000))
					if _, err := n.Worker.Write(ctx, st, p[:k]); err != nil {
						t.Error(err)
						return
					}
					p = p[k:]
				}
				n.Worker.CloseStream(st)
			}
			wg.Go(func() { write(wire.Stdout, out) })
			wg.Go(func() { write(wire.Stderr, errs) })
			old := n.Client
			got := readSome(ctx, old, wire.Stdout, r.IntN(500_000))
			gotErr := readSome(ctx, old, wire.Stderr, r.IntN(40_000))

			var from *wire.Offsets // every other round the application has kept its place
			if seed%2 == 0 {
				from = &wire.Offsets{Stdout: uint64(len(got)), Stderr: uint64(len(gotErr))}
			}
			second, err := n.Attach(from)
			if err != nil {
				t.Fatal(err)
			}
			at, atErr := second.Consumed(wire.Stdout), second.Consumed(wire.Stderr)
			if at > uint64(len(got)) || from != nil && at != uint64(len(got)) {
				t.Errorf("seed %d: goes on at %d; the first had taken %d", seed, at, len(got))
			}
			var rest, restErr []byte
			wg.Go(func() { restErr, _ = drain(ctx, second, wire.Stderr) })
			rest, err = drain(ctx, second, wire.Stdout)
			if err != nil {
				t.Error(err)
			}
			wg.Wait()
			n.Worker.Finish(wire.ExitedWith(0))
			<-second.Done()
			if !bytes.Equal(append(got[:at:at], rest...), out) || !bytes.Equal(append(gotErr[:atErr:atErr], restErr...), errs) {
				t.Errorf("seed %d: the halves are not the output: %d+%d of %d, %d+%d of %d", seed, at, len(rest), len(out), atErr, len(restErr), len(errs))
			}
			if c := n.Worker.Counters(); c.Protocol != 0 {
				t.Errorf("seed %d: %+v", seed, c)
			}
			old.Close()
			second.Close()
			n.Worker.Close()
		})
	}
}

// TestC030_TheOldHolderIsFenced: no stdin of the old attach after the fence
// reaches the process, and it is told FENCED.
func TestC030_TheOldHolderIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		ctx := t.Context()
		a := n.Client
		if _, err := a.Write(ctx, wire.Stdin, []byte("from A.")); err != nil {
			t.Fatal(err)
		}
		if got := readSome(ctx, n.Worker, wire.Stdin, 7); string(got) != "from A." {
			t.Fatalf("%q", got)
		}
		b, err := n.Attach(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = a.Write(ctx, wire.Stdin, []byte("late from A.")) // before A knows
		synctest.Wait()
		if _, err := b.Write(ctx, wire.Stdin, []byte("from B.")); err != nil {
			t.Fatal(err)
		}
		b.CloseStream(wire.Stdin)
		got, err := drain(ctx, n.Worker, wire.Stdin)
		if err != nil || string(got) != "from B." {
			t.Errorf("the process read %q, %v", got, err)
		}
		time.Sleep(time.Second) // everything on its way has come
		if _, err := a.Write(ctx, wire.Stdin, []byte("x")); !errors.Is(err, &wire.Error{Code: wire.CodeFenced}) {
			t.Errorf("A's next write: %v", err)
		}
		if c := n.Worker.Counters(); c.Older == 0 || c.Protocol != 0 {
			t.Errorf("counters %+v; want frames of the older attach dropped, none a breach", c)
		}
		if _, _, err := n.Worker.Attach(2, wire.Key{}, nil, wire.DownCredit{}); wire.CodeOf(err) != wire.CodeConflict {
			t.Errorf("attach 2 again: %v", err)
		}
		if _, _, err := n.Worker.Attach(9, wire.Key{}, &wire.Offsets{Stdout: 1}, wire.DownCredit{}); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("from beyond what was sent: %v", err)
		}
		a.Close()
		b.Close()
		n.Worker.Close()
	})
}

// TestAttach_StderrTakenStdoutStuck: frames that were acknowledged behind one
// that was not are stepped over.
func TestAttach_StderrTakenStdoutStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		ctx := t.Context()
		out := pattern(100_000, 1)
		if _, err := n.Worker.Write(ctx, wire.Stdout, out); err != nil {
			t.Fatal(err)
		}
		errs := pattern(2_000_000, 2)
		go func() {
			for p := errs; len(p) > 0; p = p[min(5000, len(p)):] {
				_, _ = n.Worker.Write(ctx, wire.Stderr, p[:min(5000, len(p))])
			}
			n.Worker.Finish(wire.ExitedWith(3))
		}()
		first := readSome(ctx, n.Client, wire.Stderr, 1_500_000)
		second, err := n.Attach(&wire.Offsets{Stderr: uint64(len(first))})
		if err != nil {
			t.Fatal(err)
		}
		rest, err := drain(ctx, second, wire.Stderr)
		if err != nil || !bytes.Equal(append(first, rest...), errs) {
			t.Errorf("stderr: %d + %d of %d, %v", len(first), len(rest), len(errs), err)
		}
		if got, err := drain(ctx, second, wire.Stdout); err != nil || !bytes.Equal(got, out) {
			t.Errorf("stdout: %d of %d, %v", len(got), len(out), err)
		}
		<-second.Done()
		if x, _ := second.Exit(); x == nil || x.Outcome.String() != "exited(3)" {
			t.Errorf("exit %+v", x)
		}
		n.Client.Close()
		second.Close()
		n.Worker.Close()
	})
}

// TestAttach_AfterEverythingEnded: streams whose EOF was acknowledged are at
// their end for the next holder too.
func TestAttach_StreamsThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		ctx := t.Context()
		n.Client.CloseStream(wire.Stdin)
		n.Worker.CloseStream(wire.Stdout)
		if _, err := drain(ctx, n.Client, wire.Stdout); err != nil {
			t.Fatal(err)
		}
		if _, err := drain(ctx, n.Worker, wire.Stdin); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		second, err := n.Attach(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Read(ctx, wire.Stdout, make([]byte, 1)); err != io.EOF {
			t.Errorf("stdout: %v; want EOF", err)
		}
		if _, err := second.Write(ctx, wire.Stdin, []byte("x")); err == nil {
			t.Error("stdin was closed by the first client, and the second may write")
		}
		n.Worker.Finish(wire.ExitedWith(0))
		<-second.Done()
		n.Client.Close()
		second.Close()
		n.Worker.Close()
	})
}

// TestC019_PoolBoundsTheGroup: ends whose readers have stopped never hold more
// than the pool, and one whose reader resumes goes on.
func TestC019_PoolBoundsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 20
		worker := duplex.NewPool(64<<20, 1000, nil)
		pool := duplex.NewPool(limit, 16, worker)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		nets := make([]*linktest.Net, 16)
		inFlight := func() (sum uint64) {
			for _, n := range nets {
				sum += n.Worker.Sent().Stdout - n.Client.Consumed(wire.Stdout)
			}
			return sum
		}
		for i := range nets {
			nets[i] = linktest.New(linktest.Config{Pool: pool, Faults: linktest.Faults{Delay: time.Millisecond}})
			wg.Go(func() {
				for { // as a worker's pump does
					room, err := nets[i].Worker.Room(ctx, wire.Stdout)
					if err != nil {
						return
					}
					if nets[i].Worker.WriteBuf(wire.Stdout, make([]byte, wire.HeaderSize+room)) != nil {
						return
					}
				}
			})
		}
		time.Sleep(10 * time.Second)
		if sum := inFlight(); sum > limit || sum < limit/2 {
			t.Errorf("%d bytes in flight with a pool of %d", sum, limit)
		}
		for i, n := range nets {
			start := time.Now()
			if got := readSome(ctx, n.Client, wire.Stdout, 3<<20); len(got) != 3<<20 {
				t.Fatalf("end %d: %d bytes", i, len(got))
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("end %d needed %s for 3 MiB", i, d)
			}
			if sum := inFlight(); sum > limit {
				t.Errorf("%d bytes in flight while end %d reads", sum, i)
			}
		}
		cancel()
		for _, n := range nets {
			n.Client.Close()
			n.Worker.Close()
		}
		wg.Wait()
		if f := pool.Free(); f != limit/2 {
			t.Errorf("after the end %d bytes are free; want %d", f, limit/2)
		}
	})
}

// TestAttach_BySavedKey: a process that comes back with its key goes on without a
// coordinator, over a control path that loses and doubles; a second one that
// uses the same key is told FENCED.
func TestAttach_BySavedKey(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			n := linktest.New(linktest.Config{Faults: linktest.Faults{Seed: seed, Delay: time.Millisecond, DropControl: 0.4}})
			ctx := t.Context()
			data := pattern(300_000, seed)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = n.Worker.Write(ctx, wire.Stdout, data)
				n.Worker.Finish(wire.ExitedWith(0))
			})
			got := readSome(ctx, n.Client, wire.Stdout, 100_000)
			n.Client.Close()
			second, err := n.Resume(ctx, 1, &wire.Offsets{Stdout: uint64(len(got))})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := second.Write(ctx, wire.Stdin, []byte("x")); err != nil {
				t.Error(err)
			}
			rest, err := drain(ctx, second, wire.Stdout)
			if err != nil || !bytes.Equal(append(got, rest...), data) {
				t.Errorf("seed %d: %d + %d of %d, %v", seed, len(got), len(rest), len(data), err)
			}
			if string(readSome(ctx, n.Worker, wire.Stdin, 1)) != "x" {
				t.Error("the key of the new attach does not work")
			}
			if _, err := n.Resume(ctx, 1, nil); wire.CodeOf(err) != wire.CodeFenced {
				t.Errorf("the old key again: %v", err)
			}
			wg.Wait()
			second.Close()
			n.Worker.Close()
		})
	}
}

// TestZeroCreditIsAskedFor: a writer whose first credit was 0, or lost, is not
// stuck for ever.
func TestZeroCreditIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{HoldStart: true})
		up, down := n.Keys()
		n.Worker.Start(duplex.Grant{Attach: 1, KeyUp: up, KeyDown: down})
		n.StartClient()
		go func() {
			_, _ = n.Worker.Write(t.Context(), wire.Stdout, []byte("hello"))
			n.Worker.Finish(wire.ExitedWith(0))
		}()
		if got, err := drain(t.Context(), n.Client, wire.Stdout); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		<-n.Worker.Taken()
		n.Client.Close()
		n.Worker.Close()
	})
}
