package integration

import (
	"strings"
	"testing"
	"time"
)

// A worker killed -9 is shown dead soon, and an open on it is refused at once.
func TestG014_WorkerKilled(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric(nil, nil)
	lease := f.acquire()
	if w := f.workers(); len(w) != 1 || w[0].Worker != "w1" || w[0].State != "live" || w[0].AgeMS > 4000 {
		t.Fatalf("workers: %+v", w)
	}
	f.worker.kill()
	killed := time.Now()

	refusal := func(when string) {
		t.Helper()
		began := time.Now()
		r := f.weft("", "open", lease, "--", "true")
		t.Logf("%s: refused after %v: %s", when, time.Since(began), r.stderr)
		r.want(t, 125, "", "WORKER_NOT_RUNNING")
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("%s: it took %v", when, d)
		}
	}
	refusal("still shown live")
	h.until("it is dead", func() bool { return f.workers()[0].State == "dead" })
	t.Logf("dead after %v", time.Since(killed))
	if d := time.Since(killed); d > 10*time.Second {
		t.Errorf("shown dead after %v", d)
	}
	refusal("shown dead")
	f.coordinator.stop()
}

// What a person sees when the worker of a running command dies.
func TestWorkerLostUnderRun(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric([]string{"--worker-lost-after", "8s"}, nil)
	p := h.start("weft", f.args("run", "--", "sh", "-c", "echo ready; exec sleep 60"))
	p.says(p.out, "ready")
	f.worker.kill()
	killed := time.Now()
	defer h.evict() // ending what a killed worker has left is not in this worker yet
	p.says(p.err, "does not answer")
	silent := time.Since(killed)
	code := p.wait()
	took := time.Since(killed)
	t.Logf("silent after %v, over after %v:\n%s", silent, took, p.err)
	if code != 255 || took > 25*time.Second {
		t.Errorf("exit %d after %v; want 255 within 25 s", code, took)
	}
	first, second := strings.Index(p.err.String(), "does not answer"), strings.Index(p.err.String(), "the worker is lost")
	if first < 0 || second < first {
		t.Errorf("notices: %s", p.err)
	}
	f.coordinator.stop()
}

// The lease of an inline worker stops at check 6 and has one-shot executions.
func TestG007_InlineLease(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric(nil, []string{"--driver", "inline"})
	lease := f.acquire()
	before := h.children(f.worker.pid())
	r := f.weft("", "open", lease, "--", "sleep", "300")
	r.want(t, 125, "", "DUPLEX_UNSUPPORTED_FOR_LEASE")
	for _, text := range []string{"does not support duplex channels", "xecute"} {
		if !strings.Contains(r.stderr, text) {
			t.Errorf("%q does not say %q", r.stderr, text)
		}
	}
	if after := h.children(f.worker.pid()); after != before || len(h.residents()) != 0 {
		t.Errorf("%d processes of the worker before the refusal, %d after", before, after)
	}
	f.weft("in", "exec", lease, "--", "sh", "-c", "cat; exit 3").want(t, 3, "in", "")
	f.stop()
}

// A reader that stops blocks the command and nothing grows.
func TestI7_StoppedReader(t *testing.T) {
	h := newHome(t)
	f := h.fabric(nil, nil)
	idle := h.start("weft", f.args("run", "-n", "--", "sh", "-c", "echo ready; exec sleep 60"))
	idle.says(idle.out, "ready")
	rest := f.rss(idle)
	idle.kill()
	h.evict()

	p := h.start("weft", f.args("run", "-n", "--", "sh", "-c", "yes | head -c 1000000000"), withStoppedReader(t))
	head, written := h.blocked("head")
	least := int64(1 << 62)
	tick := time.NewTicker(scaled(200*time.Millisecond, time.Second))
	defer tick.Stop()
	// A busy machine may make it move once more after it seemed to stand.
	for steady, ticks := 0, 0; steady < scaled(5, 10); ticks++ {
		<-tick.C
		least = min(least, f.rss(p))
		if now := h.status(head, "io", "wchar"); now != written {
			written, steady, least = now, 0, 1<<62
		} else {
			steady++
		}
		if ticks > 200 || written > 8<<20 {
			t.Fatalf("the command goes on writing although nobody reads: %d bytes", written)
		}
	}
	t.Logf("blocked after %d bytes; memory of the three: %d KiB idle, %d KiB blocked", written, rest, least)
	if least-rest > 100_000 {
		t.Errorf("the three take %d KiB more than idle", least-rest)
	}
	p.kill()
	h.evict()
	f.stop()
}

// rss is the resident memory of coordinator, worker and p in KiB.
func (f *fabric) rss(p *process) int64 {
	var sum int64
	for _, q := range []*process{f.coordinator, f.worker, p} {
		sum += f.h.status(q.pid(), "status", "VmRSS")
	}
	return sum
}

// blocked waits until the process of that name in a sandbox writes no more, and
// returns its id and how much it has written.
func (h *home) blocked(name string) (pid int, written int64) {
	h.t.Helper()
	h.until(name+" is blocked", func() bool {
		if pid == 0 {
			pid = h.named(name)
			return false
		}
		now := h.status(pid, "io", "wchar")
		same := now > 0 && now == written
		written = now
		return same
	})
	return pid, written
}
