package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

// detach says that the client goes, and goes.
func (m *remote) detach() {
	m.r.t.Helper()
	m.r.ok(m.request(wire.Request{Verb: wire.VerbDetach}))
	m.die()
}

// attach attaches another client as number n.
func (m *remote) attach(n uint32, from *wire.Offsets) (*remote, wire.AttachedReply) {
	m.r.t.Helper()
	next := *m
	next.connect()
	reply, err := m.askAttach(n, from)
	m.r.ok(err)
	next.resume(n, wire.KeyUp(m.order.Secret, n), reply.Up, reply.Down)
	return &next, reply
}

func (m *remote) askAttach(n uint32, from *wire.Offsets) (reply wire.AttachedReply, err error) {
	m.r.t.Helper()
	return reply, m.r.order(subjects.WKAttach, wire.AttachOrder{
		OrderHead: m.lease.head, Channel: m.id, Attach: n, Credit: m.credit(), From: from,
	}, nil, &reply)
}

func (m *remote) credit() wire.DownCredit {
	limit, frames := m.end.Credit()
	return wire.DownCredit{Stdout: limit, Stderr: limit, FrameLimit: frames}
}

// resume starts a fresh end where an attach says that the channel stands.
func (m *remote) resume(n uint32, up wire.Key, at wire.UpPosition, down wire.DownPosition) {
	g := duplex.Grant{
		Attach: n, KeyUp: up, KeyDown: wire.KeyDown(m.order.Secret),
		Frames: at.FrameLimit, Resume: &duplex.Resume{Up: at, Down: down},
	}
	g.Credit[wire.Stdin] = at.Limit
	m.end.Start(g)
}

// pass waits d, for a case that names times.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	select {
	case <-time.After(d):
	case <-r.t.Context().Done():
	}
}

// numbers is what seq prints from 1 to n.
func numbers(n int) []byte {
	var b []byte
	for i := 1; i <= n; i++ {
		b = append(strconv.AppendInt(b, int64(i), 10), '\n')
	}
	return b
}

// some reads at least n bytes of stdout.
func (m *remote) some(n int) []byte {
	m.r.t.Helper()
	ctx, cancel := context.WithTimeout(m.r.t.Context(), patience)
	defer cancel()
	var all []byte
	buf := make([]byte, 32<<10)
	for len(all) < n {
		k, err := m.end.Read(ctx, wire.Stdout, buf)
		all = append(all, buf[:k]...)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				m.r.t.Fatalf("after %d bytes: %v", len(all), err)
			}
			break
		}
	}
	return all
}

// wantBytes compares without printing megabytes.
func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s: %d bytes, want %d; the first difference is at %d", what, len(got), len(want), at)
}

func TestC030_TheOldHolderIsFenced(t *testing.T) {
	r := newRig(t)
	a := r.run(r.bind(), piped("cat"))
	a.write("one\n")
	if got := a.line(); got != "one" {
		t.Fatal(got)
	}
	a.write("two\n") // comes back, and A never takes it
	r.until("two is back", func() bool { return a.end.Received().Stdout == 8 || r.tick() })
	b, at := a.attach(2, nil)
	if at.Up.NextOffset != 8 || at.Down.Stdout.Acked > 4 {
		t.Errorf("the attach goes on at stdin %d, stdout %d; want 8, at most 4", at.Up.NextOffset, at.Down.Stdout.Acked)
	}
	select {
	case <-a.end.Done():
	case <-time.After(patience):
		t.Fatal("A was not told")
	}
	_, err := a.end.Write(t.Context(), wire.Stdin, []byte("fenced\n"))
	wantCode(t, err, wire.CodeFenced)
	wantCode(t, a.request(wire.Request{Verb: wire.VerbStop}), wire.CodeChannelEnded)
	b.write("three\n")
	b.end.CloseStream(wire.Stdin)
	res := b.collect()
	want := "one\ntwo\nthree\n"[at.Down.Stdout.Acked:]
	if string(res.stdout) != want {
		t.Errorf("B read %q, want %q", res.stdout, want)
	}
	if res.exit.Totals.Stdin != 14 || !res.exit.Outcome.Success() {
		t.Errorf("the process took %d bytes, %s", res.exit.Totals.Stdin, res.exit.Outcome)
	}
}

// An old holder that has not heard of the fence sends what nobody obeys.
func TestC030_DeafHolder(t *testing.T) {
	r := newRig(t)
	a := r.run(r.bind(), piped("cat"))
	// A double of A's end, which its fence will not reach.
	deaf := duplex.New(duplex.Config{Side: duplex.Client, Channel: a.id, Epoch: a.lease.head.Epoch.N, Link: a.port})
	defer deaf.Close()
	b, _ := a.attach(2, nil)
	g := duplex.Grant{
		Attach: 1, KeyUp: wire.KeyUp(a.order.Secret, 1), KeyDown: wire.KeyDown(a.order.Secret),
		Frames: 64,
	}
	g.Credit[wire.Stdin] = 1 << 20
	deaf.Start(g)
	_, err := deaf.Write(t.Context(), wire.Stdin, []byte("of the old one\n"))
	r.ok(err)
	r.ok(r.conn.Flush(t.Context()))
	b.write("of the new one\n")
	b.end.CloseStream(wire.Stdin)
	if res := b.collect(); string(res.stdout) != "of the new one\n" {
		t.Errorf("the process read %q", res.stdout)
	}
}

func TestC031_KilledClientAndAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lines := sized(60_000, 600_000)
	e := sh(fmt.Sprintf(`i=0; while [ $i -lt %d ]; do seq $((i+1)) $((i+2000)); i=$((i+2000)); sleep 0.01; done`, lines))
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 30_000}
	a := r.run(r.bind(), e)
	first := a.some(50_000)
	a.die()
	r.pass(300 * time.Millisecond)
	b, at := a.attach(2, nil)
	cut := at.Down.Stdout.Acked
	if cut > uint64(len(first)) {
		t.Fatalf("%d bytes were read, the attach goes on at %d", len(first), cut)
	}
	res := b.collect()
	wantBytes(t, "the first half, cut, and the second", append(first[:cut:cut], res.stdout...), numbers(lines))
	wantOutcome(t, res.exit.Outcome, "exited(0)")
}

func TestE026_DetachAndAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.run(r.bind(), sh(`i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i; sleep 0.1; done`))
	first := a.some(10) // 0.5 s
	a.detach()
	r.pass(time.Second)
	b, _ := a.attach(2, &wire.Offsets{Stdout: uint64(len(first))})
	wantBytes(t, "both halves", append(first, b.collect().stdout...), numbers(20))
}

// Whatever the old holders had been granted, nothing is lost or doubled.
func TestAttachInAFastStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := sized(1_500_000, 15_000_000)
	m := r.run(r.bind(), wire.Exec{Argv: []string{"seq", "1", strconv.Itoa(n)}})
	var all []byte
	for i := uint32(2); i < 20; i++ {
		all = append(all, m.some(200_000)...)
		next, at := m.attach(i, &wire.Offsets{Stdout: uint64(len(all))})
		if at.Down.Stdout.Acked != uint64(len(all)) {
			t.Fatalf("attach %d goes on at %d, want %d", i, at.Down.Stdout.Acked, len(all))
		}
		m.die()
		m = next
	}
	res := m.collect()
	wantBytes(t, "all parts", append(all, res.stdout...), numbers(n))
	wantOutcome(t, res.exit.Outcome, "exited(0)")
}

func TestAttachOrders(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, piped("cat"))
	second, _ := m.attach(5, nil)
	_, err := m.askAttach(5, nil)
	wantCode(t, err, wire.CodeConflict)
	if e := wire.AsError(err); e.Details["attach"] != "5" {
		t.Errorf("the conflict names attach %q, want 5", e.Details["attach"])
	}
	_, err = m.askAttach(6, &wire.Offsets{Stdout: 1})
	wantCode(t, err, wire.CodeInvalidArgument)
	other := *m
	other.id = uuid.New()
	_, err = other.askAttach(2, nil)
	wantCode(t, err, wire.CodeChannelEnded)
	stale := *m
	stale.lease.head.Epoch.N = 0
	_, err = stale.askAttach(6, nil)
	wantCode(t, err, wire.CodeInvalidArgument)
	second.end.CloseStream(wire.Stdin)
	second.collect()
	second.record()
	r.until("it is forgotten", func() bool { return r.w.Stats().Channels == 0 || r.tick() })
	reply, err := m.askAttach(6, nil)
	r.ok(err)
	if reply.Outcome == nil || !reply.Outcome.Success() || reply.Attach != 0 {
		t.Errorf("an attach after the end says %+v", reply)
	}
	one := r.draft(l, wire.Exec{Mode: wire.ModeExecute, Argv: []string{"sleep", "60"}})
	r.ok(one.open())
	_, err = one.askAttach(2, nil)
	wantCode(t, err, wire.CodeInvalidArgument)
}

// tick makes until look again.
func (r *rig) tick() bool {
	time.AfterFunc(5*time.Millisecond, func() { r.note(func() {}) })
	return false
}

func TestResumeWithASavedKey(t *testing.T) {
	r := newRig(t)
	a := r.run(r.bind(), piped("cat"))
	a.write("abc")
	first := a.some(3)
	a.die()
	b := *a
	b.connect()
	ask, err := r.mux.Open(channelOf(a))
	r.ok(err)
	defer ask.Close()
	q := duplex.NewResumer(ask, a.id, 1, wire.KeyUp(a.order.Secret, 1), wire.KeyDown(a.order.Secret))
	ask.Bind(q)
	reply, err := q.Run(t.Context(), &wire.Offsets{Stdout: 3}, b.credit())
	r.ok(err)
	if want := wire.KeyUp(a.order.Secret, 2); reply.Attach != 2 || !bytes.Equal(reply.KeyUp, want[:]) {
		t.Fatalf("attach %d, key right: %t", reply.Attach, bytes.Equal(reply.KeyUp, want[:]))
	}
	b.resume(2, wire.Key(reply.KeyUp), reply.Up, reply.Down)
	// Attach numbers that coordinators make go on from there.
	_, err = a.askAttach(2, nil)
	wantCode(t, err, wire.CodeConflict)
	b.write("def")
	b.end.CloseStream(wire.Stdin)
	if got := string(append(first, b.collect().stdout...)); got != "abcdef" {
		t.Errorf("stdout %q", got)
	}
}

func TestE013_KeptAttachedAndStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t, withLimits(soon))
	e := sh("echo $$; exec sleep 60")
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.Keep}
	m := r.run(r.bind(), e)
	m.pid()
	m.die()
	r.pass(time.Second)
	next, _ := m.attach(2, nil)
	r.ok(next.request(wire.Request{Verb: wire.VerbStop}))
	wantOutcome(t, next.exit().Outcome, "ended_by_request")
	wantOutcome(t, next.record().Outcome, "ended_by_request")
}

func TestE013_GraceCountsFromTheDetach(t *testing.T) {
	t.Parallel()
	r := newRig(t) // three keepalives are 15 s
	e := sh("exec sleep 60")
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 200}
	m := r.run(r.bind(), e)
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.Keep, AfterMS: 200}
	kept := r.run(m.lease, e)
	began := time.Now()
	m.detach()
	kept.detach()
	wantOutcome(t, m.record().Outcome, "client_lost")
	wantOutcome(t, kept.record().Outcome, "client_lost")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ended %s after the detach", took)
	}
}

// A client that has come back is there again.
func TestAttachResetsTheDetachment(t *testing.T) {
	t.Parallel()
	r := newRig(t, withLimits(worker.Limits{Keepalive: time.Second, Flush: 100 * time.Millisecond}))
	e := piped("cat")
	e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: 500}
	m := r.run(r.bind(), e)
	m.detach()
	next, _ := m.attach(2, nil)
	r.pass(1500 * time.Millisecond) // past the grace, not past three keepalives
	next.write("still here\n")
	if got := next.line(); got != "still here" {
		t.Errorf("read %q", got)
	}
	next.end.CloseStream(wire.Stdin)
	wantOutcome(t, next.collect().exit.Outcome, "exited(0)")
}

func TestC016_SignalPastFullWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.run(r.bind(), piped("sh", "-c", `trap 'echo caught >&2' INT; yes & while :; do wait; done`))
	go func() { // ends with the channel
		_, _ = m.end.Write(t.Context(), wire.Stdin, make([]byte, 8<<20))
	}()
	r.until("both windows are full", func() bool {
		return m.end.Received().Stdout >= duplex.DefaultWindow || r.tick()
	})
	r.pass(500 * time.Millisecond)
	began := time.Now()
	r.ok(m.request(wire.Request{Verb: wire.VerbSignal, Signal: "INT"}))
	acted := time.Since(began)
	buf := make([]byte, 16)
	n, err := m.end.Read(t.Context(), wire.Stderr, buf)
	r.ok(err)
	if got := strings.TrimSpace(string(buf[:n])); got != "caught" {
		t.Errorf("stderr says %q", got)
	}
	took := time.Since(began)
	if acted > 2*time.Second || took > 2*time.Second {
		t.Errorf("acted on after %s, the line came after %s", acted, took)
	}
	t.Logf("acted on after %s, the line came after %s", acted, took)
	r.ok(m.request(wire.Request{Verb: wire.VerbStop}))
	m.record()
}

// A pump that waits for output was promised credit which a new holder does not
// give.
func TestAttachWithLessCredit(t *testing.T) {
	r := newRig(t)
	const before, after = duplex.DefaultWindow - 8000, 7000
	m := r.run(r.bind(), sh(fmt.Sprintf("head -c %d /dev/zero; until [ -e go ]; do sleep 0.01; done; head -c %d /dev/zero", before, after)))
	r.until("the first part came", func() bool { return m.end.Received().Stdout == before || r.tick() })
	next := *m
	next.connect()
	var reply wire.AttachedReply
	r.ok(r.order(subjects.WKAttach, wire.AttachOrder{
		OrderHead: m.lease.head, Channel: m.id, Attach: 2, Credit: wire.DownCredit{Stdout: 1, Stderr: 1, FrameLimit: 1},
	}, nil, &reply))
	r.run(m.lease, sh("touch go")).collect()
	m.record() // the output was read, although there is no credit
	next.resume(2, wire.KeyUp(m.order.Secret, 2), reply.Up, reply.Down)
	res := next.collect()
	if len(res.stdout) != before+after || res.exit.Totals.Stdout != before+after {
		t.Errorf("%d bytes, told %d, want %d", len(res.stdout), res.exit.Totals.Stdout, before+after)
	}
}
