package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
)

// bound is ten times what a case asks for under 2 s (the cases' own rule).
const bound = 10 * time.Second

// stack starts a whole fabric in this process.
func stack(t testing.TB, o fabric.Options) *fabric.Stack {
	t.Helper()
	o.Log = zerolog.Nop()
	s, err := fabric.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("start the fabric: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop the fabric: %v", err)
		}
	})
	return s
}

func connect(t testing.TB, s *fabric.Stack, o client.Options) *client.Client {
	t.Helper()
	o.InProcess, o.Auth.Token = s.InProcess(), s.Token()
	c, err := client.Connect(t.Context(), o)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func acquire(t testing.TB, c *client.Client) *client.Lease {
	t.Helper()
	l, err := c.AcquireLease(t.Context(), client.AcquireOptions{Environment: t.Name()})
	if err != nil {
		t.Fatalf("AcquireLease: %v", err)
	}
	return l
}

// lease is a lease on a fabric of the test's own.
func lease(t testing.TB) *client.Lease {
	t.Helper()
	return acquire(t, connect(t, stack(t, fabric.Options{}), client.Options{}))
}

func sh(script string) client.Command { return client.Command{Argv: []string{"sh", "-c", script}} }

func piped(argv ...string) client.Command {
	return client.Command{Argv: argv, Stdin: client.StdinPipe}
}

func open(t testing.TB, l *client.Lease, cmd client.Command, opts ...client.Option) *client.Channel {
	t.Helper()
	ch, err := l.Open(t.Context(), cmd, opts...)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return ch
}

// ends waits for the outcome, at most for the bound.
func ends(t testing.TB, ch *client.Channel, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	if o, err := ch.WaitContext(ctx); o.String() != want || err != nil {
		t.Errorf("Wait: %v, %v; want %s", o, err, want)
	}
}

func TestC001_EveryByteValue(t *testing.T) {
	l := lease(t)
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	var kept [][]byte
	var errs bytes.Buffer
	ch := open(t, l, piped("cat"), client.WithMerged(func(k client.Chunk) {
		if k.Stderr {
			errs.Write(k.Data)
			return
		}
		kept = append(kept, k.Data)
	}))
	for i := range all {
		if _, err := ch.Write(all[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ch.Write(all); err != nil {
		t.Fatal(err)
	}
	if err := ch.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	ends(t, ch, "exited(0)")
	if got := bytes.Join(kept, nil); !bytes.Equal(got, append(all, all...)) || errs.Len() != 0 {
		t.Errorf("stdout %d bytes, stderr %q", len(got), errs.String())
	}
	if n := ch.Totals(); n != (client.Totals{Stdin: 512, Stdout: 512}) {
		t.Errorf("totals %+v", n)
	}
	if n := ch.TakenByProcess(); n != 512 {
		t.Errorf("TakenByProcess %d", n)
	}
}

func TestC003_MergedInTheWorkersOrder(t *testing.T) {
	l := lease(t)
	script := sh("printf o1; sleep 0.01; printf e1 >&2; sleep 0.01; printf o2; sleep 0.01; printf e2 >&2")
	ch := open(t, l, script)
	var merged strings.Builder
	for {
		k, err := ch.ReadChunk(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		merged.Write(k.Data)
	}
	ends(t, ch, "exited(0)")
	if merged.String() != "o1e1o2e2" {
		t.Errorf("merged %q", merged.String())
	}
	var out, errs strings.Builder
	ends(t, open(t, l, script, client.WithStdout(&out), client.WithStderr(&errs)), "exited(0)")
	if out.String() != "o1o2" || errs.String() != "e1e2" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
}

func TestC010_HalfClose(t *testing.T) {
	l := lease(t)
	ch := open(t, l, piped("cat"))
	if _, err := io.WriteString(ch, "abc"); err != nil {
		t.Fatal(err)
	}
	_ = ch.CloseWrite()
	if out, err := io.ReadAll(ch); string(out) != "abc" || err != nil {
		t.Errorf("cat gave %q, %v", out, err)
	}
	ends(t, ch, "exited(0)")
	ch = open(t, l, piped("wc", "-c"))
	_ = ch.CloseWrite()
	if out, err := io.ReadAll(ch); strings.TrimSpace(string(out)) != "0" || err != nil {
		t.Errorf("wc gave %q, %v", out, err)
	}
	ends(t, ch, "exited(0)")
}

func TestC012_OpenStdinDoesNotHoldTheEnd(t *testing.T) {
	l := lease(t)
	r, w := io.Pipe() // silent
	defer w.Close()
	start := time.Now()
	var out strings.Builder
	ch := open(t, l, client.Command{Argv: []string{"echo", "hi"}}, client.WithStdin(r), client.WithStdout(&out))
	ends(t, ch, "exited(0)")
	took := time.Since(start)
	t.Logf("end after %v", took)
	if out.String() != "hi\n" || took > bound {
		t.Errorf("%q after %v", out.String(), took)
	}
}

func TestC013_CommandClosesItsStdin(t *testing.T) {
	l := lease(t)
	ch := open(t, l, piped("head", "-c", "1"))
	var err error
	n := 0
	for block := make([]byte, 4096); n < 1<<20 && err == nil; {
		var k int
		k, err = ch.Write(block)
		n += k
	}
	code := client.CodeOf(err)
	if code != client.CodeStdinClosed && code != client.CodeChannelEnded {
		t.Errorf("after %d bytes the writer was told %v", n, err)
	}
	if out, err := io.ReadAll(ch); len(out) != 1 || err != nil {
		t.Errorf("read %d bytes, %v", len(out), err)
	}
	ends(t, ch, "exited(0)")
}

func TestC014_OneWriteOf10MiB(t *testing.T) {
	l := lease(t)
	data := random(10 << 20)
	ch := open(t, l, piped("cat"))
	wrote := make(chan error, 1)
	blocked := make(chan struct{})
	go func() {
		close(blocked)
		_, err := ch.Write(data)
		_ = ch.CloseWrite()
		wrote <- err
	}()
	<-blocked
	// Reading begins when nothing moves any more: every window is full.
	for before := int64(-1); before != ch.TakenByProcess() || before == 0; {
		before = ch.TakenByProcess()
		wait(t, 200*time.Millisecond)
	}
	out, err := io.ReadAll(ch)
	if err != nil || sha256.Sum256(out) != sha256.Sum256(data) {
		t.Errorf("read %d bytes, %v", len(out), err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("write: %v", err)
	}
	ends(t, ch, "exited(0)")
}

// wait lets time pass on a process that is not ours to watch.
func wait(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.FailNow()
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestC015_ClosedReaderDoesNotHoldTheCommand(t *testing.T) {
	l := lease(t)
	var errs strings.Builder
	ch := open(t, l, sh("head -c 20000000 /dev/zero; echo done >&2; exit 4"), client.WithStderr(&errs))
	if _, err := ch.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ch.CloseStdout()
	ends(t, ch, "exited(4)")
	if errs.String() != "done\n" {
		t.Errorf("stderr %q", errs.String())
	}
}

func TestC021_ManyTinyWrites(t *testing.T) {
	l := lease(t)
	data := random(10_000)
	var out bytes.Buffer
	ch := open(t, l, piped("cat"), client.WithStdout(&out))
	for i := range data {
		if _, err := ch.Write(data[i : i+1]); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	_ = ch.CloseWrite()
	ends(t, ch, "exited(0)")
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back, or others", out.Len())
	}
}

func TestC022_WritesAroundTheServersLimit(t *testing.T) {
	l := lease(t)
	var out bytes.Buffer
	ch := open(t, l, piped("cat"), client.WithStdout(&out))
	data := random(3 << 20)
	rest := data
	for _, n := range []int{1<<20 - 1, 1 << 20, 1<<20 + 1} {
		if _, err := ch.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	_ = ch.CloseWrite()
	ends(t, ch, "exited(0)")
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back, or others", out.Len())
	}
}

func TestC006_ChannelsLeaveNothing(t *testing.T) {
	rounds := 200
	if os.Getenv("WEFT_SOAK") != "" {
		rounds = 2000
	}
	c := connect(t, stack(t, fabric.Options{}), client.Options{})
	l := acquire(t, c)
	run := func() {
		var out strings.Builder
		ch := open(t, l, client.Command{Argv: []string{"printf", "%020d", "7"}}, client.WithStdout(&out))
		ends(t, ch, "exited(0)")
		if out.Len() != 20 {
			t.Fatalf("%d bytes", out.Len())
		}
	}
	for range 5 {
		run()
	}
	settled := func() int {
		n := runtime.NumGoroutine()
		for range 100 {
			wait(t, 20*time.Millisecond)
			if m := runtime.NumGoroutine(); m >= n {
				return n
			} else {
				n = m
			}
		}
		return n
	}
	base, subs := settled(), client.Subscriptions(c)
	start := time.Now()
	for range rounds {
		run()
	}
	t.Logf("%d channels, %v each", rounds, time.Since(start)/time.Duration(rounds))
	if n := settled(); n > base+3 {
		t.Errorf("%d goroutines, %d before", n, base)
	}
	if n := client.Subscriptions(c); n != subs {
		t.Errorf("%d subscriptions, %d before", n, subs)
	}
}

func TestE001_E002_Outcomes(t *testing.T) {
	l := lease(t)
	for script, want := range map[string]string{
		"exit 0": "exited(0)", "exit 42": "exited(42)", "exit 255": "exited(255)",
		"kill -9 $$": "signaled(KILL, core=false)", "kill -TERM $$": "signaled(TERM, core=false)",
	} {
		ends(t, open(t, l, sh(script)), want)
	}
	ends(t, open(t, l, client.Command{Argv: []string{"no-such-command"}}), "start_failed(not_found)")
}

func TestE004_Stop(t *testing.T) {
	l := lease(t)
	ch := open(t, l, client.Command{Argv: []string{"sleep", "60"}})
	if err := ch.Stop(t.Context(), 0); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	ends(t, ch, "ended_by_request")
}

func TestE015_SignalReachesTheCommand(t *testing.T) {
	l := lease(t)
	ch := open(t, l, sh(`trap 'echo got INT; exit 3' INT; echo ready; while :; do sleep 0.02; done`))
	buf := make([]byte, 64)
	if n, err := ch.Read(buf); string(buf[:n]) != "ready\n" || err != nil {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if err := ch.Signal(t.Context(), "INT"); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	if out, err := io.ReadAll(ch); string(out) != "got INT\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	ends(t, ch, "exited(3)")
}

func execute(t testing.TB, l *client.Lease, cmd client.Command, opts ...client.Option) *client.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	res, err := l.Execute(ctx, cmd, opts...)
	if err != nil {
		t.Fatalf("Execute %.40q: %v", cmd.Argv, err)
	}
	return res
}

func TestE021_ExecuteWithoutInput(t *testing.T) {
	res := execute(t, lease(t), client.Command{Argv: []string{"cat"}})
	if !res.Success() || len(res.Stdout.Bytes()) != 0 {
		t.Errorf("%v, %q", res.Outcome, res.Stdout)
	}
}

func TestE022_FiveMiBOfInput(t *testing.T) {
	l := lease(t)
	for n, want := range map[int]string{3: "3", 256 << 10: "262144", 5 << 20: "5242880"} {
		res := execute(t, l, client.Command{Argv: []string{"wc", "-c"}}, client.WithStdin(bytes.NewReader(make([]byte, n))))
		if got := strings.TrimSpace(res.Stdout.String()); got != want || !res.Success() {
			t.Errorf("%d bytes: %q, %v", n, got, res.Outcome)
		}
	}
}

func TestE023_TenMillionBytes(t *testing.T) {
	res := execute(t, lease(t), sh("printf begin; head -c 9999992 /dev/zero; printf end; exit 9"), client.WithOutputKept(65_536))
	o := res.Stdout
	if len(o.Head) != 32_768 || len(o.Tail) != 32_768 || o.Omitted != 9_934_464 || res.Outcome.String() != "exited(9)" {
		t.Errorf("%d + %d, omitted %d, %v", len(o.Head), len(o.Tail), o.Omitted, res.Outcome)
	}
	if !bytes.HasPrefix(o.Head, []byte("begin")) || !bytes.HasSuffix(o.Tail, []byte("end")) {
		t.Error("the wrong bytes were kept")
	}
}

func TestE024_ExecuteBesideAFlood(t *testing.T) {
	l := lease(t)
	flood := open(t, l, client.Command{Argv: []string{"yes"}})
	if _, err := flood.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	res := execute(t, l, client.Command{Argv: []string{"echo", "ok"}})
	took := time.Since(start)
	t.Logf("answered after %v", took)
	if res.Stdout.String() != "ok\n" || took > bound {
		t.Errorf("%q after %v", res.Stdout, took)
	}
	if err := flood.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestE030_ArgvUntouched(t *testing.T) {
	l := lease(t)
	items := []string{"a b", "it's", "$(id)", "*", "\n", ""}
	want := strings.Join(items, "\x00") + "\x00"
	cmd := client.Command{Argv: append([]string{"printf", `%s\0`}, items...)}
	if res := execute(t, l, cmd); res.Stdout.String() != want {
		t.Errorf("Execute: %q", res.Stdout)
	}
	if out, err := io.ReadAll(open(t, l, cmd)); string(out) != want || err != nil {
		t.Errorf("Open: %q, %v", out, err)
	}
}

func TestE032_CwdAndEnv(t *testing.T) {
	t.Setenv("WEFT_TEST_SECRET", "of the worker")
	l := lease(t)
	execute(t, l, client.Command{Argv: []string{"mkdir", "-p", "sub/dir"}})
	res := execute(t, l, client.Command{
		Argv: []string{"sh", "-c", `pwd; env >&2`}, Cwd: "sub/dir", Env: map[string]string{"A": "1"},
	})
	if dir := strings.TrimSpace(res.Stdout.String()); filepath.Base(filepath.Dir(dir)) != "sub" || filepath.Base(dir) != "dir" {
		t.Errorf("cwd %q", dir)
	}
	if env := res.Stderr.String(); !strings.Contains(env, "A=1\n") || strings.Contains(env, "WEFT_TEST_SECRET") {
		t.Errorf("environment:\n%s", env)
	}
}

// A reader that takes only one stream, and the library pumps the other.
func TestPumpedStderr_FreesTheReaderOfStdout(t *testing.T) {
	l := lease(t)
	var errs bytes.Buffer
	ch := open(t, l, sh("head -c 3000000 /dev/zero >&2; echo end"), client.WithStderr(&errs))
	if out, err := io.ReadAll(ch); string(out) != "end\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	ends(t, ch, "exited(0)")
	if errs.Len() != 3_000_000 {
		t.Errorf("stderr %d bytes", errs.Len())
	}
}

func TestG020_InlineLeaseFallsBack(t *testing.T) {
	s := stack(t, fabric.Options{Worker: fabric.Worker{Driver: "inline"}})
	l := acquire(t, connect(t, s, client.Options{}))
	if _, err := l.Open(t.Context(), sh("true")); client.CodeOf(err) != client.CodeDuplexUnsupported {
		t.Errorf("Open: %v", err)
	}
	ch, res, err := l.OpenOrExecute(t.Context(), piped("cat"), client.WithStdin(strings.NewReader("through")))
	if ch != nil || err != nil || res.Stdout.String() != "through" {
		t.Errorf("%v, %+v, %v", ch, res, err)
	}
}

func TestS008_S010_NothingIsSentForABadID(t *testing.T) {
	c := connect(t, stack(t, fabric.Options{}), client.Options{})
	l := acquire(t, c)
	ids := []string{"a.b", "*", ">", "a b", "a\tb", "a\r\nPUB x", "", "_INBOX", "$JS", "..", "-a", "a-",
		strings.Repeat("a", 64), strings.Repeat("a", 5000)}
	msgs, sent := client.Sent(c)
	for _, id := range ids {
		_, err := c.GetLease(t.Context(), id)
		if client.CodeOf(err) != client.CodeInvalidArgument {
			t.Errorf("lease %.20q: %v", id, err)
		}
		if id == "" {
			continue // means any
		}
		if _, err := c.AcquireLease(t.Context(), client.AcquireOptions{Plugin: id}); client.CodeOf(err) != client.CodeInvalidArgument {
			t.Errorf("plugin %.20q: %v", id, err)
		}
	}
	if m, b := client.Sent(c); m != msgs || b != sent {
		t.Errorf("%d messages and %d bytes were sent", m-msgs, b-sent)
	}
	if _, err := c.AcquireLease(t.Context(), client.AcquireOptions{Plugin: strings.Repeat("a", 63)}); client.CodeOf(err) != client.CodeNoWorker {
		t.Errorf("63 characters: %v", err)
	}
	if _, err := l.Open(t.Context(), client.Command{}); client.CodeOf(err) != client.CodeInvalidArgument {
		t.Errorf("empty argv: %v", err)
	}
	ends(t, open(t, l, sh("true")), "exited(0)") // the connection is up
}

func TestLease_OnTheRealFabric(t *testing.T) {
	s := stack(t, fabric.Options{})
	c := connect(t, s, client.Options{})
	l, err := c.AcquireLease(t.Context(), client.AcquireOptions{IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	same, err := c.AcquireLease(t.Context(), client.AcquireOptions{IdempotencyKey: "k"})
	if err != nil || same.ID() != l.ID() {
		t.Errorf("the same key gave %v, %v", same, err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	got, err := c.GetLease(t.Context(), l.ID())
	if err != nil || got.Info().State != "active" || got.Info().ProviderLeaseID == "" {
		t.Errorf("GetLease: %+v, %v", got, err)
	}
	all, err := c.ListLeases(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != l.ID() {
		t.Errorf("ListLeases: %v, %v", all, err)
	}
	workers, err := c.Workers(t.Context())
	if err != nil || len(workers) != 1 || workers[0].State != "live" {
		t.Errorf("Workers: %+v, %v", workers, err)
	}
	info, err := c.Info(t.Context())
	if err != nil || info.Limits["frameBytes"] != 65_536 {
		t.Errorf("Info: %+v, %v", info, err)
	}
	ch := open(t, l, client.Command{Argv: []string{"sleep", "60"}, Grace: time.Millisecond})
	if err := l.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
	ends(t, ch, "lease_released")
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release again: %v", err)
	}
	if _, err := l.Open(t.Context(), sh("true")); client.CodeOf(err) != client.CodeLeaseReleased {
		t.Errorf("Open on a released lease: %v", err)
	}
	if _, err := c.GetLease(t.Context(), "7c9e6679-7425-40de-944b-e07fc1f90ae7"); client.CodeOf(err) != client.CodeNotFound {
		t.Errorf("unknown lease: %v", err)
	}
	other, err := client.Connect(t.Context(), client.Options{InProcess: s.InProcess(), Tenant: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.GetLease(t.Context(), l.ID()); client.CodeOf(err) != client.CodePermissionDenied {
		t.Errorf("unlisted tenant: %v", err)
	}
}
