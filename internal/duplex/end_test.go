package duplex_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/duplex/linktest"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a command like cat: what comes on stdin goes to stdout.
func echo(ctx context.Context, w *duplex.End) {
	buf := make([]byte, 32<<10)
	for {
		n, err := w.Read(ctx, wire.Stdin, buf)
		if err != nil {
			break
		}
		if _, err := w.Write(ctx, wire.Stdout, buf[:n]); err != nil {
			break
		}
	}
	w.Finish(wire.ExitedWith(0))
}

// drain reads a stream to its end.
func drain(ctx context.Context, e *duplex.End, st wire.Stream) ([]byte, error) {
	var out bytes.Buffer
	buf := make([]byte, 20_000)
	for {
		n, err := e.Read(ctx, st, buf)
		out.Write(buf[:n])
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return out.Bytes(), err
		}
	}
}

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// roundTrip sends data to an echo in writes of the given size and returns what came back.
func roundTrip(t *testing.T, n *linktest.Net, data []byte, write int) []byte {
	t.Helper()
	ctx := t.Context()
	var wg sync.WaitGroup
	wg.Go(func() { echo(ctx, n.Worker) })
	wg.Go(func() {
		for p := data; len(p) > 0; {
			k := min(write, len(p))
			if m, err := n.Client.Write(ctx, wire.Stdin, p[:k]); err != nil || m != k {
				t.Errorf("write: took %d of %d: %v", m, k, err)
				return
			}
			p = p[k:]
		}
		n.Client.CloseStream(wire.Stdin)
	})
	got, err := drain(ctx, n.Client, wire.Stdout)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	if rest, err := drain(ctx, n.Client, wire.Stderr); err != nil || len(rest) != 0 {
		t.Errorf("stderr: %d bytes, %v", len(rest), err)
	}
	<-n.Client.Done()
	wg.Wait()
	x, err := n.Client.Exit()
	if err != nil || !x.Outcome.Success() || x.Totals.Stdin != uint64(len(data)) || x.Totals.Stdout != uint64(len(data)) {
		t.Errorf("exit %+v, %v; want exited(0) with totals %d", x, err, len(data))
	}
	<-n.Worker.Taken()
	n.Client.Close()
	n.Worker.Close()
	return got
}

func TestC001_AllByteValues(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, write := range []int{1, 256} {
		synctest.Test(t, func(t *testing.T) {
			n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
			if got := roundTrip(t, n, all, write); !bytes.Equal(got, all) {
				t.Errorf("writes of %d: got %d bytes, not the 256 sent", write, len(got))
			}
		})
	}
}

func TestC014_WindowSmallerThanOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Window: 64 << 10, Faults: linktest.Faults{Delay: time.Millisecond}})
		data := pattern(10<<20, 14)
		if got := roundTrip(t, n, data, len(data)); sha256.Sum256(got) != sha256.Sum256(data) {
			t.Error("hashes differ")
		}
	})
}

func TestC021_TenThousandOneByteWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: 200 * time.Microsecond}})
		data := pattern(10_000, 21)
		if got := roundTrip(t, n, data, 1); !bytes.Equal(got, data) {
			t.Error("bytes differ")
		}
		if stores, _ := n.Counts(); stores > 2_000 {
			t.Errorf("%d frames for 10,000 one-byte writes: they were not gathered", stores)
		}
	})
}

func TestC022_WritesAroundMaxPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{1_048_575, 1_048_576, 1_048_577} {
			n := linktest.New(linktest.Config{Tap: func(_ duplex.Side, _ bool, msg []byte) {
				if len(msg) > wire.MaxFrame {
					t.Errorf("a message of %d bytes left", len(msg))
				}
			}})
			data := pattern(size, 22)
			if got := roundTrip(t, n, data, size); !bytes.Equal(got, data) {
				t.Errorf("%d: bytes differ", size)
			}
		}
	})
}

// TestI4_LossyLink sends both ways over a link with every fault at once: every
// byte arrives, once and in order.
func TestI4_LossyLink(t *testing.T) {
	seeds := 60
	if os.Getenv("WEFT_SOAK") != "" {
		seeds = 1000
	}
	t.Logf("%d seeds", seeds)
	for seed := range seeds {
		ok := t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(seed), 3))
				p := func() float64 { return r.Float64() * 0.3 }
				n := linktest.New(linktest.Config{Faults: linktest.Faults{
					Seed: uint64(seed), Delay: time.Millisecond, Jitter: time.Duration(r.IntN(40)+1) * time.Millisecond,
					DropLive: p(), DropAck: p(), DropStore: p(), Refuse: p(), DupLive: p(), DropControl: p(), DupControl: p(),
				}})
				for i := range 3 {
					on := i%2 == 0
					time.AfterFunc(time.Duration(r.IntN(3000))*time.Millisecond, func() { n.Cut(on) })
				}
				time.AfterFunc(3*time.Second, func() { n.Cut(false) })
				time.AfterFunc(time.Duration(r.IntN(3000))*time.Millisecond, n.LoseLog)
				data := pattern(r.IntN(400_000)+1, uint64(seed))
				if got := roundTrip(t, n, data, r.IntN(5000)+50); !bytes.Equal(got, data) {
					t.Errorf("got %d bytes of %d, or others", len(got), len(data))
				}
				c, w := n.Client.Counters(), n.Worker.Counters()
				if c.Protocol+w.Protocol+c.Tag+w.Tag != 0 {
					t.Errorf("an honest run was counted as breach: %+v %+v", c, w)
				}
			})
		})
		if !ok {
			return
		}
	}
}

func TestC020_CreditsTripledAndShuffled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		granted, worst := uint64(duplex.DefaultWindow), uint64(0)
		up, down := (&linktest.Net{}).Keys()
		n := linktest.New(linktest.Config{
			Faults: linktest.Faults{Delay: time.Millisecond, Jitter: 15 * time.Millisecond, DupControl: 1},
			Tap: func(from duplex.Side, control bool, msg []byte) {
				mu.Lock()
				defer mu.Unlock()
				if control && from == duplex.Client {
					if st, err := wire.DecodeState(msg, up); err == nil {
						granted = max(granted, st.Streams[wire.Stdout].Limit)
					}
				}
				if !control && from == duplex.Worker {
					if f, err := wire.NewFrameKey(down, 2).Open(bytes.Clone(msg)); err == nil && f.Type == wire.FrameStdout && f.End() > granted {
						worst = max(worst, f.End()-granted)
					}
				}
			},
		})
		data := pattern(20_000_000, 20)
		if got := roundTrip(t, n, data, 1<<20); sha256.Sum256(got) != sha256.Sum256(data) {
			t.Error("hashes differ")
		}
		if worst > 0 {
			t.Errorf("the sender passed the highest offset granted by %d", worst)
		}
	})
}

// TestC017_SlowReaderStopsTheWriter: the bytes taken stop at the window.
func TestC017_ReaderThatStopsBoundsTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		var wg sync.WaitGroup
		data := pattern(3<<20, 17)
		wg.Go(func() {
			if _, err := n.Worker.Write(t.Context(), wire.Stdout, data); err != nil {
				t.Error(err)
			}
			n.Worker.Finish(wire.ExitedWith(0))
		})
		time.Sleep(10 * time.Second)
		taken := n.Worker.Sent().Stdout
		if taken > duplex.DefaultWindow+wire.MaxPayload {
			t.Errorf("the sender took %d bytes with a window of %d", taken, duplex.DefaultWindow)
		}
		stores, _ := n.Counts()
		time.Sleep(time.Minute)
		if now := n.Worker.Sent().Stdout; now != taken {
			t.Errorf("bytes went from %d to %d while nobody read", taken, now)
		}
		if s, _ := n.Counts(); s != stores {
			t.Errorf("%d stores while nobody read", s-stores)
		}
		got, err := drain(t.Context(), n.Client, wire.Stdout)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("after the pause: %d bytes, %v", len(got), err)
		}
		wg.Wait()
		<-n.Worker.Taken()
		n.Client.Close()
		n.Worker.Close()
	})
}

func TestC015_StderrPassesAFullStdout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		ctx := t.Context()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = n.Worker.Write(ctx, wire.Stdout, pattern(1<<20, 1)) })
		// More stderr than a window and a ring, in many frames, behind the stuck stdout.
		want := pattern(3<<20, 2)
		wg.Go(func() {
			for p := want; len(p) > 0; p = p[min(10_000, len(p)):] {
				if _, err := n.Worker.Write(ctx, wire.Stderr, p[:min(10_000, len(p))]); err != nil {
					t.Error(err)
				}
			}
			n.Worker.CloseStream(wire.Stderr)
		})
		got, err := drain(ctx, n.Client, wire.Stderr)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("stderr: %d of %d bytes, %v", len(got), len(want), err)
		}
		n.Client.Discard(wire.Stdout) // closing a reader: take and drop
		wg.Wait()
		n.Worker.Finish(wire.ExitedWith(4))
		<-n.Client.Done()
		if x, err := n.Client.Exit(); err != nil || x.Outcome.String() != "exited(4)" || x.Totals.Stdout != 1<<20 {
			t.Errorf("exit %+v, %v", x, err)
		}
		<-n.Worker.Taken()
		n.Client.Close()
		n.Worker.Close()
	})
}

func TestC013_StdinClosedByTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond, DropControl: 0.4, Seed: 13}})
		ctx := t.Context()
		go func() {
			one := make([]byte, 1)
			_, _ = n.Worker.Read(ctx, wire.Stdin, one)
			n.Worker.Discard(wire.Stdin)
		}()
		_, err := n.Client.Write(ctx, wire.Stdin, pattern(1<<20, 13))
		e, _ := err.(*wire.Error)
		if e == nil || e.Code != wire.CodeStdinClosed || e.Details["taken"] != "1" {
			t.Errorf("write: %v; want STDIN_CLOSED with taken 1", err)
		}
		n.Worker.Finish(wire.ExitedWith(0))
		<-n.Client.Done()
		x, _ := n.Client.Exit()
		if x == nil || x.Totals.Stdin != 1 {
			t.Errorf("totals %+v; want 1 byte of stdin", x)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}

func TestC033_FramesOutOfOrderAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{})
		_, down := n.Keys()
		key := wire.NewFrameKey(down, 2)
		for _, seq := range []uint64{1, 3, 2, 2, 4} {
			buf := append(make([]byte, wire.HeaderSize), byte('0'+seq))
			n.Client.Frame(key.Seal(buf, wire.Frame{Type: wire.FrameStdout, Epoch: 7, Seq: seq, Offset: seq - 1}))
		}
		var got []byte
		for range 4 {
			c, err := n.Client.NextChunk(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c.Data...)
		}
		if string(got) != "1234" {
			t.Errorf("got %q", got)
		}
		if c := n.Client.Counters(); c.Protocol != 0 || c.Duplicates != 1 {
			t.Errorf("counters %+v; want no error and one duplicate", c)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}

func TestC003_MergedInTheSendersOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond, Jitter: 30 * time.Millisecond, Seed: 3}})
		go func() {
			for i, s := range []string{"o1", "e1", "o2", "e2"} {
				_, _ = n.Worker.Write(t.Context(), wire.Stdout+wire.Stream(i%2), []byte(s))
				time.Sleep(10 * time.Millisecond)
			}
			n.Worker.Finish(wire.ExitedWith(0))
		}()
		var got []string
		for {
			c, err := n.Client.NextChunk(t.Context())
			if err == io.EOF {
				break
			}
			got = append(got, string(c.Data))
		}
		if fmt.Sprint(got) != "[o1 e1 o2 e2]" {
			t.Errorf("merged %v", got)
		}
		<-n.Client.Done()
		n.Client.Close()
		n.Worker.Close()
	})
}

// TestC025_FramesBeforeTheReply: a process that has ended before the client
// has its keys loses nothing.
func TestC025_FramesBeforeTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{HoldStart: true})
		n.StartWorker()
		for range 3 {
			_, _ = n.Worker.Write(t.Context(), wire.Stdout, []byte("early"))
			synctest.Wait()
		}
		n.Worker.Finish(wire.ExitedWith(6))
		time.Sleep(500 * time.Millisecond)
		n.StartClient()
		got, err := drain(t.Context(), n.Client, wire.Stdout)
		if err != nil || string(got) != "earlyearlyearly" {
			t.Errorf("%q, %v", got, err)
		}
		<-n.Client.Done()
		<-n.Worker.Taken()
		n.Client.Close()
		n.Worker.Close()
	})
}

// TestC024_WritesBeforeTheReply: stdin written before the open is answered is
// read once and in order.
func TestC024_WritesBeforeTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{HoldStart: true})
		for _, s := range []string{"a", "bc", "def"} {
			if _, err := n.Client.Write(t.Context(), wire.Stdin, []byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		n.Client.CloseStream(wire.Stdin)
		time.Sleep(300 * time.Millisecond)
		n.StartWorker()
		n.StartClient()
		if got, err := drain(t.Context(), n.Worker, wire.Stdin); err != nil || string(got) != "abcdef" {
			t.Errorf("%q, %v", got, err)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}

// TestC034_LogRefusesThenIsSilent: the producer blocks, every byte arrives once.
func TestC034_LogRefusesThenIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		n.Refuse(true)
		time.AfterFunc(3*time.Second, func() { n.Refuse(false) })
		time.AfterFunc(4*time.Second, func() { n.Cut(true) })
		time.AfterFunc(9*time.Second, func() { n.Cut(false) })
		data := pattern(5<<20, 34)
		if got := roundTrip(t, n, data, 4096); !bytes.Equal(got, data) {
			t.Error("bytes differ")
		}
	})
}

func TestStall_EndsTheWriterWithATypedError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{})
		n.Refuse(true)
		start := time.Now()
		_, err := n.Worker.Write(t.Context(), wire.Stdout, make([]byte, 1<<20))
		e, _ := err.(*wire.Error)
		if e == nil || e.Code != wire.CodeUnavailable || e.Details["outcome"] != string(wire.Stalled) {
			t.Errorf("write: %v; want UNAVAILABLE, stalled", err)
		}
		if d := time.Since(start); d < duplex.DefaultStall || d > duplex.DefaultStall+10*time.Second {
			t.Errorf("stalled after %s", d)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}

// TestC016_SignalPassesFullWindows: control never waits behind data.
func TestC016_SignalPassesFullWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan string, 10)
		n := linktest.New(linktest.Config{
			Faults:  linktest.Faults{Delay: time.Millisecond, DropControl: 0.3, DupControl: 0.3, Seed: 16},
			Request: func(r wire.Request) wire.Answer { got <- r.Signal; return wire.Answer{} },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = n.Client.Write(ctx, wire.Stdin, make([]byte, 1<<20)) })
		wg.Go(func() { _, _ = n.Worker.Write(ctx, wire.Stdout, make([]byte, 1<<20)) })
		time.Sleep(5 * time.Second)
		for i := range 5 {
			if err := n.Client.Request(t.Context(), wire.Request{Verb: wire.VerbSignal, Signal: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
			if s := <-got; s != fmt.Sprint(i) {
				t.Errorf("signal %s came as number %d", s, i)
			}
		}
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("%d signals were obeyed twice", len(got))
		}
		cancel()
		wg.Wait()
		n.Client.Close()
		n.Worker.Close()
	})
}

func TestC038_ProtocolErrorsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed *wire.Error
		n := linktest.New(linktest.Config{Failed: func(s duplex.Side, e *wire.Error) { failed = e }})
		_, down := n.Keys()
		key := wire.NewFrameKey(down, 2)
		good := func(seq uint64) []byte {
			return key.Seal(append(make([]byte, wire.HeaderSize), 'x'), wire.Frame{Type: wire.FrameStdout, Epoch: 7, Seq: seq, Offset: seq - 1})
		}
		bad := [][]byte{
			good(1)[:20],
			append(make([]byte, wire.HeaderSize), 1),
			make([]byte, wire.HeaderSize+65_537),
			key.Seal(make([]byte, wire.HeaderSize+1), wire.Frame{Type: wire.FrameStdout, Epoch: 7, Seq: 900, Offset: 1 << 40}),
			key.Seal(make([]byte, wire.HeaderSize+1), wire.Frame{Type: wire.FrameStdout, Epoch: 6, Seq: 1, Offset: 0}),
		}
		for i := range duplex.MaxProtocolErrors {
			n.Client.Frame(bytes.Clone(bad[i%len(bad)]))
			if i < 10 {
				n.Client.Frame(good(uint64(i + 1)))
			}
		}
		forged := good(11)
		forged[50] ^= 1
		for range 500 { // anyone may publish those: metered, never counted
			n.Client.Frame(bytes.Clone(forged))
		}
		if c := n.Client.Counters(); c.Protocol != 100 || c.Tag != 500 || failed != nil {
			t.Fatalf("counters %+v, failed %v", c, failed)
		}
		buf := make([]byte, 20)
		for got := 0; got < 10; {
			k, err := n.Client.Read(t.Context(), wire.Stdout, buf)
			if err != nil {
				t.Fatal(err)
			}
			got += k
		}
		n.Client.Frame([]byte{1})
		if failed == nil || failed.Details["limit"] != "protocol_errors" {
			t.Errorf("the 101st: %v", failed)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}

// TestIdleSendsNothing: a channel that waits costs no message and no timer.
func TestIdleSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := linktest.New(linktest.Config{Faults: linktest.Faults{Delay: time.Millisecond}})
		_, _ = n.Client.Write(t.Context(), wire.Stdin, []byte("x"))
		buf := make([]byte, 10)
		_, _ = n.Worker.Read(t.Context(), wire.Stdin, buf)
		time.Sleep(time.Second)
		s1, c1 := n.Counts()
		time.Sleep(time.Hour)
		if s2, c2 := n.Counts(); s1 != s2 || c1 != c2 {
			t.Errorf("idle for an hour: %d stores, %d control messages", s2-s1, c2-c1)
		}
		n.Client.Close()
		n.Worker.Close()
	})
}
