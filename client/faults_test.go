package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/faultproxy"
)

// 50 cuts of every kind during 200 MB both ways (a tenth of each by default).
func TestI4_CutsAtAnyByte(t *testing.T) {
	r := newRough(t, 1)
	size, cuts := scaled[int64](20e6, 200e6), scaled(8, 50)
	l := r.lease(client.Options{})
	made := 0
	start := time.Now()
	r.echoed(l, size, func(_ *client.Channel, done <-chan struct{}) {
		for range cuts {
			p := []*faultproxy.Proxy{r.toClient, r.toWorker}[r.rng.IntN(2)]
			n := r.rng.Int64N(size/int64(cuts)) + 1
			var cut <-chan struct{}
			switch r.rng.IntN(3) {
			case 0:
				cut = p.CutAt(faultproxy.Up, n)
			case 1:
				cut = p.CutAt(faultproxy.Down, n)
			default:
				cut = p.CutUnanswered(n)
			}
			select {
			case <-cut:
				made++
			case <-done:
				return
			}
		}
	})
	t.Logf("%d MB both ways in %v with %d cuts", size/1e6, time.Since(start), made)
	if made < cuts/2 {
		t.Errorf("only %d of %d cuts were made", made, cuts)
	}
}

// flowed waits until the command has taken n bytes of its input.
func flowed(t *testing.T, ch *client.Channel, n int64) {
	t.Helper()
	for ch.TakenByProcess() < n {
		wait(t, 5*time.Millisecond)
	}
}

// C-029: short outages at random moments, 20 of 0.1 to 2 s (5 of at most 0.5 s by
// default), of either link.
func TestC029_ShortOutages(t *testing.T) {
	t.Parallel()
	r := newRough(t, 1)
	size, cuts, longest := scaled[int64](20e6, 200e6), scaled(5, 20), scaled(500*time.Millisecond, 2*time.Second)
	made := 0
	r.echoed(r.lease(client.Options{}), size, func(ch *client.Channel, done <-chan struct{}) {
		for i := range int64(cuts) {
			flowed(t, ch, i*size/int64(cuts)+r.rng.Int64N(size/int64(2*cuts)))
			p := []*faultproxy.Proxy{r.toClient, r.toWorker}[r.rng.IntN(2)]
			p.Set(faultproxy.Faults{Refuse: true})
			p.Cut()
			wait(t, 100*time.Millisecond+time.Duration(r.rng.Int64N(int64(longest-100*time.Millisecond))))
			p.Set(faultproxy.Faults{})
			select {
			case <-done:
			default:
				made++
			}
		}
	})
	if made < cuts-1 {
		t.Errorf("only %d outages", made)
	}
}

// C-027: packets are dropped without a reset, for 10 s (6 s by default).
func TestC027_SilentLink(t *testing.T) {
	t.Parallel()
	r := newRough(t, 1)
	var mu sync.Mutex
	told := map[client.NoticeKind]time.Time{}
	lost := make(chan struct{}, 8)
	l := r.lease(client.Options{Ping: time.Second, OnNotice: func(n client.Notice) {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := told[n.Kind]; !ok {
			told[n.Kind] = time.Now()
		}
		if n.Kind == client.ConnectionLost {
			lost <- struct{}{}
		}
	}})
	lines := scaled(400, 700)
	ch := open(t, l, sh("i=0; while [ $i -lt "+itoa(int64(lines))+" ]; do i=$((i+1)); echo line $i; sleep 0.015; done"))
	reads(t, ch, "line 1\n")
	r.toClient.Set(faultproxy.Faults{Up: faultproxy.Hold, Down: faultproxy.Hold})
	began := time.Now()
	over := time.After(scaled(6*time.Second, 10*time.Second))
	select {
	case <-lost:
	case <-over:
		t.Error("the loss of the link was not told")
	}
	t.Logf("told after %v", time.Since(began))
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("told after %v", d)
	}
	<-over
	select {
	case <-ch.Done():
		t.Fatal("an end was reported")
	default:
	}
	r.toClient.Set(faultproxy.Faults{})
	rest, err := io.ReadAll(ch)
	var want strings.Builder
	for i := 2; i <= lines; i++ {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if err != nil || string(rest) != want.String() {
		t.Errorf("%d bytes of %d, or others: %v", len(rest), want.Len(), err)
	}
	ends(t, ch, "exited(0)")
}

// C-007: the last 64 KiB of a good run are held back for 3 s.
func TestC007_HeldTail(t *testing.T) {
	t.Parallel()
	r := newRough(t, 1)
	ch := open(t, r.lease(client.Options{}), piped("sh", "-c", "read -r x; head -c 65536 /dev/zero"))
	r.toWorker.Set(faultproxy.Faults{Up: faultproxy.Hold})
	writes(t, ch, "go\n")
	select {
	case <-ch.Done():
		t.Fatal("an end came before the bytes")
	case <-time.After(3 * time.Second):
	}
	r.toWorker.Set(faultproxy.Faults{})
	if out, err := io.ReadAll(ch); len(out) != 65536 || err != nil {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	ends(t, ch, "exited(0)")
}

// C-004: 15 MB of lines and exit, over 50 ms of delay.
func TestC004_TailOverASlowLink(t *testing.T) {
	t.Parallel()
	r := newRough(t, 1)
	r.toClient.Set(faultproxy.Faults{Delay: 50 * time.Millisecond})
	lines, want := scaled[int64](300_000, 2_000_000), scaled[int64](1_988_895, 14_888_896)
	ch := open(t, r.lease(client.Options{}), client.Command{Argv: []string{"seq", itoa(lines)}})
	if n, err := io.Copy(io.Discard, ch); n != want || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	ends(t, ch, "exited(0)")
}

func TestI4_ServerRestarted(t *testing.T) {
	for name, keep := range map[string]bool{"with its store": true, "with an empty one": false} {
		t.Run(name, func(t *testing.T) {
			r := newRough(t, 1)
			size := scaled[int64](20e6, 200e6)
			l := r.lease(client.Options{})
			start := time.Now()
			r.echoed(l, size, func(ch *client.Channel, _ <-chan struct{}) {
				flowed(t, ch, size/3)
				r.srv.Restart(t, keep)
			})
			t.Logf("%d MB in %v", size/1e6, time.Since(start))
			ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
			defer cancel()
			ch, err := l.Open(ctx, client.Command{Argv: []string{"true"}})
			if keep {
				if err != nil {
					t.Fatalf("an open afterwards: %v", err)
				}
				ends(t, ch, "exited(0)")
				return
			}
			if code := client.CodeOf(err); code != client.CodeStoreRolledBack && code != client.CodeUnavailable {
				t.Errorf("an open afterwards: %v, %v", ch, err)
			}
			_, err = r.connect(client.Options{RequestTimeout: 3 * time.Second}).AcquireLease(ctx, client.AcquireOptions{})
			if code := client.CodeOf(err); code != client.CodeStoreRolledBack && code != client.CodeUnavailable {
				t.Errorf("a lease afterwards: %v", err)
			}
		})
	}
}

// Coordinators are not on the way of the data: the longest pause of an echo when
// all of them go, beside that of a quiet run.
func TestI8_CoordinatorsKilledUnderLoad(t *testing.T) {
	r := newRough(t, 2)
	l := r.lease(client.Options{})
	load := open(t, l, client.Command{Argv: []string{"yes"}}, client.WithStdout(io.Discard))
	ch := open(t, l, piped("cat"))
	longest := func(d time.Duration, meanwhile func()) (most time.Duration) {
		var side sync.WaitGroup
		side.Go(meanwhile)
		defer side.Wait()
		buf := make([]byte, 1)
		for end := time.Now().Add(d); time.Now().Before(end); {
			start := time.Now()
			writes(t, ch, "x")
			if _, err := io.ReadFull(ch, buf); err != nil {
				t.Fatal(err)
			}
			most = max(most, time.Since(start))
		}
		return most
	}
	d := scaled(2*time.Second, 20*time.Second)
	quiet := longest(d, func() {})
	killed := longest(d, func() {
		for _, stop := range r.stops {
			<-time.After(d / 4)
			stop()
		}
	})
	t.Logf("longest pause %v, %v when the coordinators go", quiet, killed)
	if killed > 2*time.Second {
		t.Errorf("a pause of %v", killed)
	}
	select {
	case <-load.Done():
		t.Error("the load has ended")
	default:
	}
	if _, err := l.Open(t.Context(), client.Command{Argv: []string{"true"}}); client.CodeOf(err) != client.CodeUnavailable {
		t.Errorf("an open without coordinators: %v", err)
	}
	_ = ch.CloseWrite()
	ends(t, ch, "exited(0)")
}

// C-031: a client is cut off for good, another comes 2 s later (0.5 s by default).
func TestC031_AnotherClientGoesOn(t *testing.T) {
	t.Parallel()
	r := newRough(t, 1)
	const block = 100_000
	size := scaled[int64](3e6, 10e6)
	var first lockedBuffer
	script := `i=0; while [ $i -lt ` + itoa(size/block) + ` ]; do i=$((i+1)); head -c 99995 /dev/zero | tr '\0' a; printf '%05d' $i; sleep 0.05; done`
	a := open(t, r.lease(client.Options{}), sh(script), client.WithStdout(&first))
	for first.Len() < int(size/4) {
		wait(t, 5*time.Millisecond)
	}
	r.toClient.Set(faultproxy.Faults{Refuse: true})
	r.toClient.Cut()
	wait(t, scaled(500*time.Millisecond, 2*time.Second))
	other, err := client.Connect(t.Context(), client.Options{URL: r.srv.URL(), Auth: client.Auth{Token: r.srv.Token()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var second bytes.Buffer
	b := attach(t, other, a.ID(), client.AttachOptions{}, client.WithStdout(&second))
	r.toClient.Set(faultproxy.Faults{})
	ends(t, b, "exited(0)")
	at := b.AttachedAt().Stdout
	if at > int64(first.Len()) {
		t.Fatalf("attached at %d, the first client has %d bytes", at, first.Len())
	}
	whole := append(first.Bytes()[:at:at], second.Bytes()...)
	if int64(len(whole)) != size {
		t.Fatalf("%d bytes + %d bytes; want %d", at, second.Len(), size)
	}
	for i := range int(size / block) {
		if got := string(whole[(i+1)*block-5 : (i+1)*block]); got != fmt.Sprintf("%05d", i+1) {
			t.Fatalf("block %d ends with %q", i+1, got)
		}
	}
	t.Logf("attached at %d of %d; the first client has %d", at, size, first.Len())
	if o, err := waits(t, a); o.Kind != client.Unknown || !errors.Is(err, client.ErrFenced) {
		t.Errorf("the old client's Wait: %v, %v", o, err)
	}
}
