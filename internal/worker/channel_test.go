package worker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

// sized is small, or with WEFT_SOAK=1 the size that the case names.
func sized(small, soak int) int {
	if os.Getenv("WEFT_SOAK") == "1" {
		return soak
	}
	return small
}

func TestC005_ExactTail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.bind()
	for _, n := range []int{1, 4095, 4096, 4097} {
		res := r.run(l, sh("head -c "+strconv.Itoa(n)+" /dev/zero")).collect()
		if len(res.stdout) != n || res.exit.Totals.Stdout != uint64(n) {
			t.Errorf("%d bytes, totals %d; want %d", len(res.stdout), res.exit.Totals.Stdout, n)
		}
	}
}

func TestC006_PlacesComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.bind()
	for range 100 {
		m := r.run(l, sh("printf 01234567890123456789"))
		res := m.collect()
		if len(res.stdout) != 20 || !res.exit.Outcome.Success() {
			t.Fatalf("%d bytes, %s", len(res.stdout), res.exit.Outcome)
		}
		m.record()
	}
	if s := r.w.Stats(); s.Running != 0 || s.Leases != 1 {
		t.Errorf("left over: %+v", s)
	}
}

func TestC010_HalfClose(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, piped("cat"))
	m.write("abc")
	m.end.CloseStream(wire.Stdin)
	if res := m.collect(); string(res.stdout) != "abc" || !res.exit.Outcome.Success() {
		t.Errorf("%q, %s", res.stdout, res.exit.Outcome)
	}
	m = r.run(l, piped("wc", "-c"))
	m.end.CloseStream(wire.Stdin)
	if got := strings.TrimSpace(string(m.collect().stdout)); got != "0" {
		t.Errorf("wc -c of nothing says %q", got)
	}
}

func TestC011_OutputAfterTheEndOfStdin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.run(r.bind(), piped("sh", "-c", "cat; sleep 0.5; head -c 100000 /dev/zero"))
	m.end.CloseStream(wire.Stdin)
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	if len(res.stdout) != 100_000 {
		t.Errorf("%d bytes of 100,000", len(res.stdout))
	}
}

func TestC012_SilentStdinDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	m := r.run(r.bind(), piped("echo", "hi"))
	res := m.collect()
	if string(res.stdout) != "hi\n" || !res.exit.Outcome.Success() {
		t.Errorf("%q, %s", res.stdout, res.exit.Outcome)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end came after %s", took)
	} else {
		t.Logf("the end came after %s", took)
	}
}

func TestC013_StdinClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := r.run(r.bind(), piped("sh", "-c", "head -c 1; exec <&-; sleep 1"))
	n, err := m.end.Write(t.Context(), wire.Stdin, make([]byte, 8<<20))
	wantCode(t, err, wire.CodeStdinClosed)
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	if len(res.stdout) != 1 {
		t.Errorf("stdout is %d bytes", len(res.stdout))
	}
	taken := res.exit.Totals.Stdin
	if taken == 0 || taken > uint64(n) || taken > 2<<20 {
		t.Errorf("%d bytes taken by the process, %d by the channel", taken, n)
	}
	if !strings.Contains(err.Error(), strconv.FormatUint(taken, 10)) {
		t.Errorf("the answer %q does not name the %d bytes taken", err, taken)
	}
	if rec := m.record(); rec.Totals != res.exit.Totals {
		t.Errorf("on record %+v, told %+v", rec.Totals, res.exit.Totals)
	}
}

func TestC015_ReaderClosedEarly(t *testing.T) {
	t.Parallel()
	size := sized(10_000_000, 100_000_000)
	r := newRig(t)
	l := r.bind()
	m := r.run(l, sh("head -c "+strconv.Itoa(size)+" /dev/zero | tr '\\0' '\\n'; echo done >&2; exit 4"))
	m.line()
	m.end.Discard(wire.Stdout)
	other := r.run(l, piped("cat"))
	other.write("x\n")
	if got := other.line(); got != "x" {
		t.Errorf("the neighbour says %q", got)
	}
	other.end.CloseStream(wire.Stdin)
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(4)")
	if string(res.stderr) != "done\n" {
		t.Errorf("stderr %q", res.stderr)
	}
	if res.exit.Totals.Stdout != uint64(size) {
		t.Errorf("totals say %d bytes of stdout", res.exit.Totals.Stdout)
	}
	other.collect()
}

// taken is how far a command that counts its output in a file has come.
func taken(t *testing.T, r *rig, l lease, file string) string {
	t.Helper()
	return string(r.run(l, sh("cat "+file+" 2>/dev/null || true")).collect().stdout)
}

func TestC017_StoppedReaderStopsTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.bind()
	// Each block is on stdout before the count says so.
	m := r.run(l, sh(`i=0; while [ $i -lt 160 ]; do head -c 4096 /dev/zero; i=$((i+1)); echo $i >count.new; mv count.new count; done`))
	// The process is blocked when the count stands still over many looks.
	last, same := "", 0
	for same < 50 {
		if now := taken(t, r, l, "count"); now == last && now != "" {
			same++
		} else {
			last, same = now, 0
		}
	}
	blocks, err := strconv.Atoi(strings.TrimSpace(last))
	r.ok(err)
	const most = duplex.DefaultWindow + 64<<10 + wire.MaxPayload
	if got := blocks * 4096; got > most || got < duplex.DefaultWindow {
		t.Errorf("the process wrote %d bytes to a reader that took none; want window to %d", got, most)
	}
	res := m.collect()
	if len(res.stdout) != 160*4096 || !res.exit.Outcome.Success() {
		t.Errorf("%d bytes, %s", len(res.stdout), res.exit.Outcome)
	}
}

func TestC018_StopFreesABlockedWriter(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), piped("sleep", "60"))
	wrote := make(chan error, 1)
	go func() { // ends with the write, which the stop below frees
		_, err := m.end.Write(t.Context(), wire.Stdin, make([]byte, 1<<20))
		wrote <- err
	}()
	r.ok(m.request(wire.Request{Verb: wire.VerbStop}))
	wantOutcome(t, m.exit().Outcome, "ended_by_request")
	if err := <-wrote; wire.CodeOf(err) == "" {
		t.Errorf("the writer got %v, want a typed error", err)
	}
}

// A reader that has stopped keeps neither the place nor the process of a
// command that is stopped, and still gets every byte the command wrote.
func TestStopUnderAStoppedReader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.bind()
	m := r.run(l, sh("echo $$; exec yes"))
	pid := m.pid()
	// Two sevenths of the credit are gone with certainty when the window is full.
	r.until("the process blocks", func() bool { return m.end.Received().Stdout >= duplex.DefaultWindow || r.tick() })
	r.ok(m.request(wire.Request{Verb: wire.VerbStop}))
	rec := m.record()
	wantGone(t, pid)
	wantOutcome(t, rec.Outcome, "ended_by_request")
	res := m.collect()
	if rest := uint64(len(res.stdout) + len(strconv.Itoa(pid)) + 1); rest != rec.Totals.Stdout || res.exit.Totals != rec.Totals {
		t.Errorf("read %d bytes, told %+v, on record %+v", rest, res.exit.Totals, rec.Totals)
	}
	if !bytes.HasPrefix(res.stdout, []byte("y\ny\n")) {
		t.Errorf("stdout begins %q", res.stdout[:min(8, len(res.stdout))])
	}
}

func TestC023_LateFirstCredit(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.draft(l, sh("head -c 1000 /dev/zero; exit 6"))
	m.order.Credit = wire.DownCredit{Stdout: 1, Stderr: 1, FrameLimit: 1}
	r.ok(m.open())
	r.run(l, sh("sleep 0.5")).collect()
	m.start()
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(6)")
	if len(res.stdout) != 1000 {
		t.Errorf("%d bytes of 1,000", len(res.stdout))
	}
}

// slowDriver needs a while to start a command.
type slowDriver struct {
	sandbox.Driver
	entered chan struct{}
	goOn    chan struct{}
}

type slowBox struct {
	sandbox.Sandbox
	d *slowDriver
}

func (d *slowDriver) Provision(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := d.Driver.Provision(ctx, s)
	return slowBox{b, d}, err
}

func (b slowBox) Start(ctx context.Context, c sandbox.Command) (*sandbox.Process, error) {
	b.d.entered <- struct{}{}
	select {
	case <-b.d.goOn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return b.Sandbox.Start(ctx, c)
}

func slow(d **slowDriver) settings {
	return func(c *worker.Config) {
		*d = &slowDriver{Driver: c.Driver, entered: make(chan struct{}, 1), goOn: make(chan struct{})}
		c.Driver = *d
	}
}

func TestC024_StdinBeforeTheStart(t *testing.T) {
	var d *slowDriver
	r := newRig(t, slow(&d))
	m := r.draft(r.bind(), piped("cat"))
	opened := make(chan error, 1)
	go func() { opened <- m.open() }() // ends with the open
	<-d.entered
	// The keys and the first credit for stdin are known before the reply here, so
	// that the frames are there before the process is.
	m2 := *m
	m2.opened.Credit = wire.UpCredit{Stdin: duplex.DefaultWindow, FrameLimit: duplex.FrameWindow}
	m2.start()
	for _, s := range []string{"one ", "two ", "three"} {
		m.write(s)
	}
	d.goOn <- struct{}{}
	r.ok(<-opened)
	m.end.CloseStream(wire.Stdin)
	if got := string(m.collect().stdout); got != "one two three" {
		t.Errorf("the process read %q", got)
	}
}

func TestE034_ClosedWhileStarting(t *testing.T) {
	var d *slowDriver
	r := newRig(t, slow(&d))
	m := r.draft(r.bind(), sh("echo started >&2"))
	opened := make(chan error, 1)
	go func() { opened <- m.open() }() // ends with the open
	<-d.entered
	var p wire.ProbeReply
	r.ok(r.order(subjects.WKClose, wire.CloseOrder{OrderHead: m.order.OrderHead, Channel: m.id, Outcome: wire.EndedByRequest}, nil, &p))
	r.ok(<-opened)
	if o := m.opened.Outcome; o == nil || o.Kind != wire.EndedByRequest {
		t.Errorf("the open says %v", o)
	}
	wantOutcome(t, m.record().Outcome, "ended_by_request")
}

func TestC025_EarlyFrames(t *testing.T) {
	r := newRig(t)
	m := r.draft(r.bind(), sh("echo a; echo b; echo c; exit 2"))
	r.ok(m.open())
	m.record() // everything was sent before the client has its keys
	m.start()
	res := m.collect()
	wantOutcome(t, res.exit.Outcome, "exited(2)")
	if string(res.stdout) != "a\nb\nc\n" {
		t.Errorf("stdout %q", res.stdout)
	}
}

func TestC026_RepeatedOpen(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.draft(l, sh("echo line >>lines; cat lines"))
	replies := make(chan error, 2)
	for range 2 {
		go func() { // ends with the request
			var o wire.OpenedReply
			err := r.order(subjects.WKOpen, m.order, m.body, &o)
			if err == nil && o.Channel != m.id {
				t.Errorf("the reply names %s", o.Channel)
			}
			replies <- err
		}()
	}
	r.ok(<-replies)
	r.ok(<-replies)
	r.ok(m.open())
	m.start()
	if got := string(m.collect().stdout); got != "line\n" {
		t.Errorf("the file holds %q", got)
	}
	m.record()
	r.ok(m.open())
	if m.opened.Outcome == nil || !m.opened.Outcome.Success() {
		t.Errorf("a repeat after the end says %v", m.opened.Outcome)
	}
	// The same id for another command is another channel.
	m.body = wire.Encode(wire.Exec{Mode: wire.ModeDuplex, Argv: []string{"true"}})
	hash := wire.BodyHash(m.body)
	m.order.BodySHA256 = hash[:]
	wantCode(t, m.open(), wire.CodeConflict)
}

func TestBulkBothWays(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), piped("cat"))
	size := sized(8<<20, 256<<20)
	data := make([]byte, size)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(data)
	go func() { // ends when all is taken, or the channel closed with the test
		_, _ = m.end.Write(t.Context(), wire.Stdin, data)
		m.end.CloseStream(wire.Stdin)
	}()
	began := time.Now()
	h := sha256.New()
	buf := make([]byte, 64<<10)
	n := 0
	for {
		k, err := m.end.Read(t.Context(), wire.Stdout, buf)
		n += k
		h.Write(buf[:k])
		if err == io.EOF {
			break
		}
		r.ok(err)
	}
	if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
		t.Errorf("%d of %d bytes came back, or other ones", n, size)
	}
	t.Logf("echo of %d MiB: %.0f MB/s each way", size>>20, float64(size)/time.Since(began).Seconds()/1e6)
	wantOutcome(t, m.exit().Outcome, "exited(0)")
}

func TestChannelLimitIsExact(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	first := r.draft(l, sh("sleep 60"))
	first.order.Limits.Channels = 1
	r.ok(first.open())
	second := r.draft(l, sh("true"))
	second.order.Limits.Channels = 1
	wantCode(t, second.open(), wire.CodeRouteBusy)
	first.start()
	r.ok(first.request(wire.Request{Verb: wire.VerbStop}))
	first.record()
	r.ok(second.open())
}

func TestOpensThatDoNotFit(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	for name, c := range map[string]struct {
		change func(*wire.OpenOrder)
		want   wire.Code
	}{
		"another sandbox":   {func(o *wire.OpenOrder) { o.ProviderLeaseID = "process-other" }, wire.CodeSandboxNotCached},
		"no sandbox":        {func(o *wire.OpenOrder) { o.ProviderLeaseID = "" }, wire.CodeInvalidArgument},
		"another lease":     {func(o *wire.OpenOrder) { o.Lease = uuid.NewString() }, wire.CodeSandboxNotCached},
		"another tenant":    {func(o *wire.OpenOrder) { o.Tenant = "other" }, wire.CodeSandboxNotCached},
		"another body":      {func(o *wire.OpenOrder) { o.BodySHA256 = make([]byte, 32) }, wire.CodeInvalidArgument},
		"another mode":      {func(o *wire.OpenOrder) { o.Mode = wire.ModeExecute }, wire.CodeInvalidArgument},
		"no secret":         {func(o *wire.OpenOrder) { o.Secret = nil }, wire.CodeInvalidArgument},
		"no credit":         {func(o *wire.OpenOrder) { o.Credit.Stderr = 0 }, wire.CodeInvalidArgument},
		"a later epoch":     {func(o *wire.OpenOrder) { o.Epoch.N = 9 }, wire.CodeSandboxNotCached},
		"S-015 an instance": {func(o *wire.OpenOrder) { o.Instance = uuid.NewString() }, wire.CodeWorkerNotRunning},
		"S-015 a worker":    {func(o *wire.OpenOrder) { o.Worker = "w2" }, wire.CodeWorkerNotRunning},
	} {
		m := r.draft(l, sh("true"))
		c.change(&m.order)
		if err := m.open(); wire.CodeOf(err) != c.want {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
	if s := r.w.Stats(); s.Channels != 0 {
		t.Errorf("refused opens left %+v", s)
	}
}
