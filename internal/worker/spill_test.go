package worker_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

// kept is a command that its client's absence does not end.
func kept(argv ...string) wire.Exec {
	return wire.Exec{Argv: argv, OnDisconnect: &wire.OnDisconnect{Policy: wire.Keep}}
}

func withSpill(n int64) settings {
	return withLimits(worker.Limits{Spill: n, Flush: 300 * time.Millisecond})
}

// wantNoSpill fails if anything is left on disk once the channels are forgotten.
func (r *rig) wantNoSpill() {
	r.t.Helper()
	r.until("no channel is left", func() bool { return r.w.Stats().Channels == 0 || r.tick() })
	if n := r.w.Stats().Spilled; n != 0 {
		r.t.Errorf("%d bytes are counted as spilled after the end", n)
	}
}

func TestC032_KeepWithoutSpillBlocks(t *testing.T) {
	t.Parallel()
	r := newRig(t, withSpill(-1))
	n := sized(3_000_000, 14_000_000) // 22 MB, 100 MB
	m := r.run(r.bind(), kept("seq", "1", strconv.Itoa(n)))
	m.detach()
	r.pass(time.Second)
	next, at := m.attach(2, nil)
	if s := r.w.Stats(); s.Running != 1 || s.Spilled != 0 || at.Down.Stdout.Sent > duplex.DefaultWindow {
		t.Errorf("after a second without a client: %+v, %d bytes sent", s, at.Down.Stdout.Sent)
	}
	if at.Down.Stdout.Acked != 0 {
		t.Errorf("%d bytes are gone", at.Down.Stdout.Acked)
	}
	res := next.collect()
	wantBytes(t, "stdout", res.stdout, numbers(n))
	wantOutcome(t, res.exit.Outcome, "exited(0)")
}

func TestDetachedOutputIsSpilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := sized(5_300_000, 8_500_000) // 41 MB; 67 MB are just under 64 MiB
	m := r.run(r.bind(), kept("sh", "-c", "seq 1 "+strconv.Itoa(n)+"; echo done >&2; exit 5"))
	first := m.some(100)
	m.detach()
	rec := m.record() // it ended although nobody reads
	wantOutcome(t, rec.Outcome, "exited(5)")
	want := numbers(n)
	if rec.Totals.Stdout != uint64(len(want)) || rec.Totals.Stderr != 5 {
		t.Errorf("on record %+v, want %d and 5", rec.Totals, len(want))
	}
	if s := r.w.Stats(); s.Running != 0 || s.Spilled < int64(len(want))-4<<20 {
		t.Errorf("%+v, want most of %d bytes spilled", s, len(want))
	}
	next, _ := m.attach(2, &wire.Offsets{Stdout: uint64(len(first))})
	res := next.collect()
	wantBytes(t, "stdout", append(first, res.stdout...), want)
	if string(res.stderr) != "done\n" || res.exit.Totals != rec.Totals {
		t.Errorf("stderr %q, told %+v", res.stderr, res.exit.Totals)
	}
	wantOutcome(t, res.exit.Outcome, "exited(5)")
	r.wantNoSpill()
}

// Byte exactness over many detaches, also while the spill is being drained, with
// a spill that is too small for all and a command that is still at work.
func TestDetachAttachManyTimes(t *testing.T) {
	t.Parallel()
	r := newRig(t, withSpill(1<<20))
	n := sized(2_000_000, 25_000_000)
	m := r.run(r.bind(), kept("seq", "1", strconv.Itoa(n)))
	var all []byte
	for i := uint32(2); i < 12; i++ {
		all = append(all, m.some(1<<20)...)
		m.detach()
		r.pass(time.Duration(i) * 5 * time.Millisecond)
		if s := r.w.Stats(); s.Spilled > 1<<20 {
			t.Errorf("%d bytes are spilled, more than the limit", s.Spilled)
		}
		m, _ = m.attach(i, &wire.Offsets{Stdout: uint64(len(all))})
	}
	res := m.collect()
	wantBytes(t, "all parts", append(all, res.stdout...), numbers(n))
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	r.wantNoSpill()
}

// A quiet command whose output was spilled: the spill arrives although nothing
// new comes, and the live output follows it.
func TestSpillThenLive(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), kept("sh", "-c", "until [ -e start ]; do sleep 0.01; done; seq 1 200000; touch wrote; until [ -e go ]; do sleep 0.01; done; echo live"))
	m.detach()
	r.run(m.lease, sh("touch start; until [ -e wrote ]; do sleep 0.01; done")).collect()
	if s := r.w.Stats(); s.Spilled == 0 {
		t.Errorf("nothing is spilled: %+v", s)
	}
	next, _ := m.attach(2, nil)
	want := numbers(200_000)
	got := next.some(len(want))
	wantBytes(t, "what was spilled", got, want)
	r.run(m.lease, sh("touch go")).collect()
	if res := next.collect(); string(res.stdout) != "live\n" {
		t.Errorf("then %q", res.stdout)
	}
}

// A stop ends a detached command, and what it had written is still delivered.
func TestStopWhileSpilled(t *testing.T) {
	r := newRig(t, withSpill(1<<20))
	m := r.run(r.bind(), kept("yes"))
	m.detach()
	r.until("the spill is full", func() bool { return r.w.Stats().Spilled == 1<<20 || r.tick() })
	var p wire.ProbeReply
	r.ok(r.order("close", wire.CloseOrder{OrderHead: m.order.OrderHead, Channel: m.id, Outcome: wire.EndedByRequest}, nil, &p))
	rec := m.record()
	wantOutcome(t, rec.Outcome, "ended_by_request")
	next, _ := m.attach(2, nil)
	res := next.collect()
	if uint64(len(res.stdout)) != rec.Totals.Stdout || len(res.stdout) < 1<<20 {
		t.Errorf("%d bytes, on record %d", len(res.stdout), rec.Totals.Stdout)
	}
	if strings.Trim(string(res.stdout), "y\n") != "" || strings.Contains(string(res.stdout), "yy") {
		t.Error("other bytes than those of yes")
	}
	r.wantNoSpill()
}

func TestSpillLeavesNoFile(t *testing.T) {
	var dir string
	r := newRig(t, func(c *worker.Config) { dir = c.StateDir })
	m := r.run(r.bind(), kept("yes"))
	m.detach()
	r.until("something is spilled", func() bool { return r.w.Stats().Spilled > 0 || r.tick() })
	info, err := os.Stat(filepath.Join(dir, "spill"))
	r.ok(err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the directory's mode is %v", info.Mode())
	}
	entries, err := os.ReadDir(filepath.Join(dir, "spill"))
	r.ok(err)
	if len(entries) != 0 {
		t.Errorf("%d files have names that a crash would leave", len(entries))
	}
}

// A command that has ended by itself gives its place back and is on record
// although its reader grants no credit; every byte is delivered later.
func TestEndedWithoutCredit(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.draft(l, sh("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; exit 3"))
	m.order.Credit = wire.DownCredit{Stdout: 1, Stderr: 1, FrameLimit: 1}
	m.order.Limits.Channels = 1
	r.ok(m.open())
	rec := m.record()
	wantOutcome(t, rec.Outcome, "exited(3)")
	second := r.draft(l, sh("true"))
	second.order.Limits.Channels = 1
	r.ok(second.open())
	second.start()
	second.collect()
	m.start()
	res := m.collect()
	if len(res.stdout) != 60_000 || len(res.stderr) != 60_000 || res.exit.Totals != rec.Totals {
		t.Errorf("%d and %d bytes, told %+v, on record %+v", len(res.stdout), len(res.stderr), res.exit.Totals, rec.Totals)
	}
	wantOutcome(t, res.exit.Outcome, "exited(3)")
}

// While a descendant holds the pipes and may write more, the command has not
// ended; when the last one has gone, it has, also without credit.
func TestEndedWithoutCreditAfterItsDescendants(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.draft(l, sh("(until [ -e go ]; do sleep 0.01; done; echo last) & head -c 60000 /dev/zero; exit 3"))
	m.order.Credit = wire.DownCredit{Stdout: 1, Stderr: 1, FrameLimit: 1}
	r.ok(m.open())
	r.run(l, sh("sleep 0.2")).collect()
	if s := r.w.Stats(); s.Running != 1 {
		t.Errorf("%d commands run while a descendant holds the pipes", s.Running)
	}
	r.run(l, sh("touch go")).collect()
	wantOutcome(t, m.record().Outcome, "exited(3)")
	m.start()
	res := m.collect()
	if len(res.stdout) != 60_005 || !strings.HasSuffix(string(res.stdout), "last\n") || res.exit.Outcome.Drain != "" {
		t.Errorf("%d bytes, drain %q", len(res.stdout), res.exit.Outcome.Drain)
	}
}

// What has ended and is not taken is kept within a bound: readers who are there
// are waited for, those who are away are not.
func TestUntakenChannelsAreBounded(t *testing.T) {
	r := newRig(t, withLimits(worker.Limits{Untaken: 2, Flush: 100 * time.Millisecond}))
	l := r.bind()
	const size = duplex.DefaultWindow + 10_000 // the rest waits for credit
	many := wire.Exec{Argv: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}}
	first, second := r.run(l, many), r.run(l, many)
	first.record()
	second.record()
	wantCode(t, r.draft(l, sh("echo 3")).open(), wire.CodeTooManyRequests)
	third := r.run(r.bind(), sh("echo on another lease"))
	third.collect()
	second.detach()
	r.ok(r.draft(l, sh("echo 3")).open())
	r.until("the one whose client is away is forgotten", func() bool {
		reply, err := second.askAttach(2, nil)
		return err == nil && reply.Outcome != nil && reply.Attach == 0 || r.tick()
	})
	if res := first.collect(); len(res.stdout) != size {
		t.Errorf("the other reader got %d bytes of %d", len(res.stdout), size)
	}
}
