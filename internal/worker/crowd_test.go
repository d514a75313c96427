package worker_test

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

// inFlight is what the worker has sent on channels and nobody has taken.
func inFlight(all []*remote) (n uint64) {
	for _, m := range all {
		got := m.end.Received()
		n += got.Stdout + got.Stderr - m.end.Consumed(wire.Stdout) - m.end.Consumed(wire.Stderr)
	}
	return n
}

// settled waits until the floods of all stand still and returns the most that
// was in flight.
func (r *rig) settled(all []*remote) (most uint64) {
	r.t.Helper()
	last, same := uint64(0), 0
	r.until("the floods stand still", func() bool {
		now := inFlight(all)
		most = max(most, now)
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same > 40 || r.tick()
	})
	return most
}

func TestC019_LeaseCapIsNeverPassed(t *testing.T) {
	const limit = 1 << 20
	r := newRig(t, withLimits(worker.Limits{InFlightLease: limit, Flush: 100 * time.Millisecond}))
	l := r.bind()
	var all []*remote
	for range 16 {
		all = append(all, r.run(l, sh("exec yes")))
	}
	most := r.settled(all)
	if most > limit || most < limit/2 {
		t.Errorf("%d bytes are in flight for the lease, want half of %d to all", most, limit)
	}
	for i, m := range all {
		if m.end.Received().Stdout == 0 {
			t.Errorf("channel %d got nothing", i)
		}
	}
	one := all[7]
	before := one.end.Received().Stdout
	began := time.Now()
	for one.end.Received().Stdout < before+limit {
		one.some(1)
		if n := inFlight(all); n > limit {
			t.Fatalf("%d bytes are in flight when one reader goes on", n)
		}
	}
	t.Logf("%d bytes in flight; the reader that resumed got 1 MiB in %s", most, time.Since(began))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the reader that resumed got 1 MiB in %s", took)
	}
	// A neighbour on another lease has its own bound.
	other := r.run(r.bind(), sh("head -c 200000 /dev/zero"))
	if res := other.collect(); len(res.stdout) != 200_000 {
		t.Errorf("the neighbour got %d bytes", len(res.stdout))
	}
}

// echoes measures n round trips of a line through cat and returns the 99th
// percentile.
func (m *remote) echoes(n int) time.Duration {
	m.r.t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		m.write("x\n")
		m.line()
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[n*99/100]
}

// wantUndisturbed compares the echo of a neighbour with and without load: the
// best of three interleaved rounds.
func wantUndisturbed(t *testing.T, echo *remote, load func() (stop func())) {
	t.Helper()
	quiet, loaded := time.Hour, time.Hour
	for range 3 {
		quiet = min(quiet, echo.echoes(sized(200, 1000)))
		stop := load()
		loaded = min(loaded, echo.echoes(sized(200, 1000)))
		stop()
	}
	t.Logf("p99 of the echo: %s quiet, %s under load", quiet, loaded)
	if loaded > max(2*quiet, 20*time.Millisecond) {
		t.Errorf("p99 of the echo: %s quiet, %s under load", quiet, loaded)
	}
}

func TestC040_FloodNextDoor(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	echo := r.run(l, piped("cat"))
	wantUndisturbed(t, echo, func() func() {
		m := r.run(l, sh("exec yes"))
		return func() {
			r.ok(m.request(wire.Request{Verb: wire.VerbStop}))
			m.end.Discard(wire.Stdout)
			m.record()
		}
	})
}

// Many floods whose readers have stopped keep the worker within its bound, and a
// neighbour goes on.
func TestI7_ManyStoppedReaders(t *testing.T) {
	const limit = 16 << 20
	n := sized(64, 1000)
	r := newRig(t, func(c *worker.Config) {
		c.Slots = n/16 + 2
		c.Limits = worker.Limits{InFlightWorker: limit, Flush: 100 * time.Millisecond}
	})
	echo := r.run(r.bind(), piped("cat"))
	quiet := echo.echoes(200)
	before := heap()
	all := make([]*remote, 0, n)
	for len(all) < n {
		l := r.bind()
		for range min(16, n-len(all)) {
			all = append(all, r.run(l, sh("exec yes")))
		}
	}
	most := r.settled(all)
	after := heap()
	loaded := echo.echoes(200)
	for range 2 {
		loaded = min(loaded, echo.echoes(200))
	}
	t.Logf("%d floods: %.1f MiB in flight of %d; heap of worker, client and server %.1f MiB before, %.1f after; resident %s; echo p99 %s quiet, %s beside them",
		n, float64(most)/(1<<20), limit>>20, before, after, resident(), quiet, loaded)
	if most > limit {
		t.Errorf("%d bytes are in flight, the worker's bound is %d", most, limit)
	}
	// Each byte in flight is in the worker's memory, in buffers of at most twice its
	// size, and in the client's; the server of this process pools its own.
	const server = 64
	if grown := after - before; grown > 3*limit/(1<<20)+server+float64(n)/8 {
		t.Errorf("the heap grew by %.1f MiB", grown)
	}
	if loaded > max(2*quiet, 20*time.Millisecond) {
		t.Errorf("echo p99 %s quiet, %s beside the floods", quiet, loaded)
	}
	one := all[n/2]
	one.some(1 << 20)
	// The clients go, with their acknowledgements; nothing stays behind.
	for _, m := range all {
		m.detach()
	}
	r.ok(r.stop())
	if s := r.w.Stats(); s.Channels != 0 || s.Leases != 0 {
		t.Errorf("left over: %+v", s)
	}
}

// heap is the live heap in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func resident() string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "unknown"
	}
	_, after, _ := strings.Cut(string(b), "VmRSS:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

func TestC041_LateFramesOfEndedChannels(t *testing.T) {
	t.Parallel()
	n := sized(150, 5000)
	const remembered = 100
	r := newRig(t, withLimits(worker.Limits{Ended: remembered, Flush: 100 * time.Millisecond}))
	live := r.run(r.bind(), piped("cat"))
	l := r.bind()
	late := make([]*remote, n)
	places := make(chan struct{}, 8)
	var wait sync.WaitGroup
	for i := range late {
		places <- struct{}{}
		late[i] = r.run(l, piped("true"))
		wait.Go(func() {
			late[i].collect()
			late[i].record()
			<-places
		})
	}
	wait.Wait()
	r.until("only the live channel is left", func() bool { return r.w.Stats().Channels == 1 || r.tick() })
	before := r.w.Stats().Bus
	nc := r.srv.Connect(t)
	for _, m := range late {
		r.ok(publishLate(nc, m))
	}
	r.ok(nc.Flush())
	r.until("all are dropped", func() bool {
		s := r.w.Stats().Bus
		return s.DroppedUnknownChannel-before.DroppedUnknownChannel >= 2*uint64(n) || r.tick()
	})
	s := r.w.Stats()
	s.Bus.DroppedUnknownChannel = before.DroppedUnknownChannel
	if s.Bus != before {
		t.Errorf("late frames count as something else: %+v, before %+v", s.Bus, before)
	}
	if s.Ended > remembered || s.Channels != 1 {
		t.Errorf("%d ends are remembered, want %d at most; %d channels", s.Ended, remembered, s.Channels)
	}
	if got := live.echoes(10); got <= 0 {
		t.Error("the live channel is silent")
	}
	live.end.CloseStream(wire.Stdin)
	wantOutcome(t, live.collect().exit.Outcome, "exited(0)")
}

// publishLate sends one more frame of stdin and a request to stop on a channel
// that has ended.
func publishLate(nc *nats.Conn, m *remote) error {
	key := wire.KeyUp(m.order.Secret, 1)
	buf := append(make([]byte, wire.HeaderSize), "late"...)
	frame := wire.NewFrameKey(key, subjects.Up).Seal(buf, wire.Frame{
		Type: wire.FrameStdin, Stream: wire.Stdin, Attach: 1, Epoch: m.lease.head.Epoch.N, Seq: 1,
	})
	if err := nc.Publish(channelOf(m).Data(subjects.Up), frame); err != nil {
		return err
	}
	body := wire.Encode(wire.Request{N: 99, Verb: wire.VerbStop})
	ask, err := wire.AppendRequest(nil, wire.ControlRequest, m.id, 1, body, key)
	if err != nil {
		return err
	}
	return nc.Publish(channelOf(m).Control(subjects.Up), ask)
}

// A client that is gone when its command ends leaves nothing once it is
// forgotten.
func TestClientGoneBeforeTheExitIsAcknowledged(t *testing.T) {
	r := newRig(t, withLimits(worker.Limits{Forget: 200 * time.Millisecond, Flush: 100 * time.Millisecond}))
	l := r.bind()
	before := runtime.NumGoroutine()
	for i := range 20 {
		m := r.run(l, sh("head -c "+strconv.Itoa(i*20_000)+" /dev/zero; echo x >&2"))
		m.die()
		if i*20_000 > 250_000 { // it waits for credit that does not come
			var p wire.ProbeReply
			r.ok(r.order(subjects.WKClose, wire.CloseOrder{OrderHead: m.order.OrderHead, Channel: m.id}, nil, &p))
		}
		m.record()
	}
	r.until("all are forgotten", func() bool { return r.w.Stats().Channels == 0 || r.tick() })
	r.until("their goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+2 || r.tick() })
	reply, err := (&remote{r: r, id: uuid.New(), lease: l, end: r.draft(l, sh("true")).end}).askAttach(2, nil)
	wantCode(t, err, wire.CodeChannelEnded)
	if reply.Attach != 0 {
		t.Errorf("an attach to nothing says %+v", reply)
	}
}
