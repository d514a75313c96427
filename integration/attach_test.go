package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// attachLines is what weft attach -o json says on standard error.
type attachLines struct {
	at struct {
		Attach uint32
		At     struct{ Stdout, Stdin int64 }
	}
	end struct {
		Outcome struct{ Kind string }
	}
}

func parseAttach(t *testing.T, stderr string) (a attachLines) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if json.Unmarshal([]byte(lines[0]), &a.at) != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &a.end) != nil {
		t.Fatalf("stderr %q", stderr)
	}
	return a
}

// savedChannel waits for the file of --save and returns the channel in it.
func (h *home) savedChannel(name string) string {
	h.t.Helper()
	var s struct{ Channel string }
	h.until("the channel is saved", func() bool {
		b, err := os.ReadFile(name)
		return err == nil && json.Unmarshal(b, &s) == nil
	})
	return s.Channel
}

// A client is killed -9 at a random byte of a command that gives back its input;
// another one attaches and goes on with both directions: 100 rounds (10 by
// default). Cut at the offset that the second one is told, or, when it says how
// much there is, uncut, both halves are the input.
func TestI4_ClientKilledAtAnyByte(t *testing.T) {
	h := newHome(t)
	f := h.fabric(nil, nil)
	lease := f.acquire()
	name, _ := h.random(3_000_000)
	input, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for round := range scaled(10, 100) {
		n := rng.Int64N(int64(len(input)-1)) + 1
		saved := h.path("saved")
		first := f.killedAt(t, n, name, saved, lease)
		id := h.savedChannel(saved)
		args := []string{"attach", "-o", "json", "--whole-stdin"}
		uncut := round%2 == 0
		if uncut {
			args = append(args, "--from", strconv.Itoa(len(first)))
		}
		if round%3 == 0 {
			args = append(args, "--from-saved", saved)
		}
		in, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var second bytes.Buffer
		p := h.start("weft", f.args(append(args, id)...), func(c *exec.Cmd) { c.Stdin, c.Stdout = in, &second })
		code := p.wait()
		in.Close()
		if code != 0 {
			t.Fatalf("round %d: attach ended with %d: %s", round, code, p.err)
		}
		a := parseAttach(t, p.err.String())
		at := a.at.At.Stdout
		// Attach 0: the first had everything, and the channel had ended.
		if a.at.Attach != 2 && (a.at.Attach != 0 || len(first) != len(input)) {
			t.Errorf("round %d: %+v", round, a)
		}
		if uncut && at != int64(len(first)) || at > int64(len(first)) || a.end.Outcome.Kind != "exited" {
			t.Errorf("round %d: killed with %d bytes; %+v", round, len(first), a)
		}
		if whole := append(first[:at:at], second.Bytes()...); !bytes.Equal(whole, input) {
			t.Fatalf("round %d: %d + %d bytes are not the %d of the input", round, at, second.Len(), len(input))
		}
		if err := os.Remove(saved); err != nil {
			t.Fatal(err)
		}
	}
	f.stop()
}

// killedAt kills a client once n bytes of output have come, and returns all that
// it has written.
func (f *fabric) killedAt(t *testing.T, n int64, input, saved, lease string) []byte {
	t.Helper()
	in, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := f.h.start("weft", f.args("open", "--kill-after", "never", "--save", saved, lease, "--", "cat"), func(c *exec.Cmd) {
		c.Stdin, c.Stdout = in, w
	})
	w.Close()
	var out bytes.Buffer
	if k, err := io.CopyN(&out, r, n); err != nil {
		t.Fatalf("after %d of %d bytes: %v; %s", k, n, err, p.err)
	}
	p.kill()
	if _, err := io.Copy(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The server, and the coordinator in its process, are killed -9 under load.
func TestI4_ServerKilled(t *testing.T) {
	for name, keep := range map[string]bool{"with its store": true, "with an empty one": false} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			args := []string{"--token", "of-this-test"}
			f := h.fabric(args, nil)
			lease := f.acquire()
			file, sum := h.random(scaled[int64](20e6, 200e6))
			in, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			d := sha256.New()
			flow := &counter{w: d, at: 5_000_000, reached: make(chan struct{})}
			p := h.start("weft", f.args("open", lease, "--", "cat"), func(c *exec.Cmd) { c.Stdin, c.Stdout = in, flow })
			<-flow.reached
			f.coordinator.kill()
			if !keep {
				if err := os.RemoveAll(h.path("state", "weft", "store")); err != nil {
					t.Fatal(err)
				}
			}
			listen := strings.TrimPrefix(f.url, "nats://")
			began := time.Now()
			f.coordinator = h.start("coordinator", append([]string{"--embed", "--listen", listen}, args...))
			if code := p.wait(); code != 0 || fmt.Sprintf("%x", d.Sum(nil)) != sum {
				t.Errorf("exit %d, digest %x, want %s; %s", code, d.Sum(nil), sum, p.err)
			}
			t.Logf("over %v after the restart", time.Since(began))
			r := f.weft("", "open", lease, "--", "true")
			if keep {
				r.want(t, 0, "", "")
				f.stop()
				return
			}
			// A coordinator that starts with an empty store knows nothing of the lease.
			if r.code != 125 {
				t.Errorf("an open afterwards: %+v", r)
			}
			f.stop()
		})
	}
}

// counter says when so many bytes were written.
type counter struct {
	w       io.Writer
	n, at   int64
	reached chan struct{}
}

func (c *counter) Write(p []byte) (int, error) {
	if c.n < c.at && c.n+int64(len(p)) >= c.at {
		close(c.reached)
	}
	c.n += int64(len(p))
	return c.w.Write(p)
}

// One coordinator of two is killed -9: the longest pause of an echo beside a quiet
// run's, and the other one answers.
func TestI8_CoordinatorKilled(t *testing.T) {
	h := newHome(t)
	f := h.fabric(nil, nil)
	second := h.start("coordinator", []string{"--server", f.url, "--name", "two"})
	second.says(second.err, `"message":"ready"`)
	// A coordinator that has not heard of the worker yet may answer.
	var lease string
	h.until("both know the worker", func() bool {
		r := f.weft("", "lease", "acquire")
		lease = strings.TrimSpace(r.stdout)
		return r.code == 0
	})
	load := h.start("weft", f.args("open", "-n", lease, "--", "yes"), func(c *exec.Cmd) { c.Stdout = io.Discard })
	r, w := io.Pipe()
	out, outW := io.Pipe()
	p := h.start("weft", f.args("open", lease, "--", "cat"), func(c *exec.Cmd) { c.Stdin, c.Stdout = r, outW })
	longest := func(d time.Duration, meanwhile func()) (most time.Duration) {
		go meanwhile()
		buf := make([]byte, 2)
		for end := time.Now().Add(d); time.Now().Before(end); {
			start := time.Now()
			if _, err := io.WriteString(w, "x\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, buf); err != nil {
				t.Fatal(err)
			}
			most = max(most, time.Since(start))
		}
		return most
	}
	longest(200*time.Millisecond, func() {}) // the opening
	d := scaled(2*time.Second, 20*time.Second)
	quiet := longest(d, func() {})
	killed := longest(d, func() { <-time.After(d / 4); second.kill() })
	t.Logf("longest pause %v, %v when a coordinator is killed", quiet, killed)
	if killed > 2*time.Second {
		t.Errorf("a pause of %v", killed)
	}
	f.weft("", "exec", "-n", lease, "--", "echo", "ok").want(t, 0, "ok\n", "")
	w.Close()
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d: %s", code, p.err)
	}
	load.kill()
	h.evict()
	f.stop()
}

// Detached, attached, watched and killed by people.
func TestDetachAndAttach(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric(nil, nil)
	lease := f.acquire()
	saved := filepath.Join(h.dir, "saved")
	r := f.weft("", "open", "--detach", "--save", saved, lease, "--", "sh", "-c", "for i in 1 2 3; do echo $i; done; cat; echo oops >&2; exit 3")
	id := strings.TrimSpace(r.stdout)
	if r.code != 0 || id != h.savedChannel(saved) {
		t.Fatalf("%+v", r)
	}
	if info, err := os.Stat(saved); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if r := f.weft("", "channel", "ls", "-o", "json"); !strings.Contains(r.stdout, id) {
		t.Errorf("%+v", r)
	}
	f.weft("in\n", "attach", id).want(t, 3, "1\n2\n3\nin\n", "oops\n")
	id = strings.TrimSpace(f.weft("", "open", "-d", lease, "--", "sleep", "300").stdout)
	f.weft("", "channel", "kill", id).want(t, 0, "", "")
	f.weft("", "attach", "-n", id).want(t, 125, "", "ended on request")
	f.stop()
}
