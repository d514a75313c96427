package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

const nasty = "a\x1b]52;c;eA==\x07\x1bPq\x9b\u009b31m\r\n\t\u202eb\u200b\x7f\xff"

// nastyRunes are what no output of weft's own may hold.
func nastyRunes(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\n' || r >= 0x7f && r <= 0x9f || r == 0x202e || r == 0x200b
	})
}

func TestS042_ControlsAreEscaped(t *testing.T) {
	var tab, det, errs bytes.Buffer
	if err := table(&tab, []string{"A", "B"}, [][]string{{nasty, ""}}); err != nil {
		t.Fatal(err)
	}
	if err := details(&det, [][2]string{{"name", nasty}}); err != nil {
		t.Fatal(err)
	}
	report(&errs, wire.Errorf(wire.CodeInternal, "%s", nasty))
	for what, s := range map[string]string{"table": tab.String(), "details": det.String(), "error": errs.String()} {
		if nastyRunes(s) {
			t.Errorf("%s: %q", what, s)
		}
	}
	if n := strings.Count(errs.String(), "\n"); n != 1 {
		t.Errorf("an error has %d lines", n)
	}
	var js bytes.Buffer
	if err := writeJSON(&js, map[string]string{"x": nasty}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || back["x"] != strings.ToValidUTF8(nasty, "\ufffd") {
		t.Errorf("JSON: %v %q", err, back)
	}
	if strings.ContainsFunc(js.String(), func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r <= 0x9f }) {
		t.Errorf("JSON: %q", js.String())
	}
	if got := printable("plain, ünïcode and 日本"); got != "plain, ünïcode and 日本" {
		t.Errorf("harmless text became %q", got)
	}
}

// Every outcome has an exit status that is not a success, and a sentence unless
// the status says it all.
func TestVerdicts(t *testing.T) {
	code := 3
	for _, c := range []struct {
		o    client.Outcome
		code int
	}{
		{wire.ExitedWith(3), 3},
		{wire.SignaledBy("KILL", false), 137},
		{client.Outcome{Kind: client.TimedOut}, 124},
		{client.Outcome{Kind: client.EndedByRequest, Code: &code}, 125},
		{client.Outcome{Kind: client.ClientLost}, 125},
		{client.Outcome{Kind: client.LeaseExpired}, 125},
		{client.Outcome{Kind: client.LeaseReleased}, 125},
		{client.Outcome{Kind: client.LeaseLost}, 255},
		{client.Outcome{Kind: client.WorkerLost}, 255},
		{client.Outcome{Kind: client.WorkerDrained}, 125},
		{client.Outcome{Kind: client.Revoked, Reason: "x"}, 125},
		{wire.Limit("output"), 125},
		{client.Outcome{Kind: client.Stalled}, 255},
		{client.Outcome{Kind: client.DataLost, Bytes: 1}, 255},
		{client.Outcome{Kind: client.Unknown}, 255},
		{client.Outcome{}, 255},
		{wire.StartFailedFor(wire.StartNotFound), 127},
		{wire.StartFailedFor(wire.StartNotExecutable), 126},
		{wire.StartFailedFor(wire.StartCwd), 125},
		{wire.StartFailedFor(wire.StartOther), 125},
	} {
		err := verdict("cmd", c.o, nil)
		e, ok := errors.AsType[*exit](err)
		if !ok || e.code != c.code {
			t.Errorf("%s: %v; want %d", c.o, err, c.code)
			continue
		}
		if natural := c.o.Kind == client.Exited || c.o.Kind == client.Signaled; natural != (e.err == nil) {
			t.Errorf("%s: says %v", c.o, e.err)
		}
	}
	if err := verdict("cmd", wire.ExitedWith(0), nil); err != nil {
		t.Errorf("exited(0): %v", err)
	}
	// Lost output is no success, even of a command that succeeded.
	if e, ok := errors.AsType[*exit](verdict("cmd", wire.ExitedWith(0), io.ErrShortWrite)); !ok || e.code != wire.ExitRefused || e.err == nil {
		t.Errorf("exited(0) with an error: %+v", e)
	}
}

func TestSentence(t *testing.T) {
	typed := wire.Errorf(wire.CodeNotFound, "no such lease")
	for _, c := range []struct {
		err  error
		want string
	}{
		{typed, "no such lease [NOT_FOUND]"},
		{fmt.Errorf("%w (%w)", typed, context.DeadlineExceeded), "no such lease [NOT_FOUND]"},
		{errors.Join(typed, errors.New("client: writing stdout: full")), "no such lease [NOT_FOUND]; writing stdout: full"},
		{errors.New("plain"), "plain"},
	} {
		if got := sentence(c.err); got != c.want {
			t.Errorf("%q; want %q", got, c.want)
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestReaderOfOurOutputGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		o := &outlet{w: failing{&os.PathError{Op: "write", Err: syscall.EPIPE}}, pipe: func() { told++ }}
		write := func(want int) {
			t.Helper()
			if n, err := o.Write([]byte("abc")); n != 3 || err != nil || told != want {
				t.Errorf("%d, %v, told %d times; want %d", n, err, told, want)
			}
		}
		write(0)
		time.Sleep(pipeGrace - 1)
		write(0)
		time.Sleep(1)
		write(1)
		time.Sleep(time.Hour)
		write(1)
	})
	full := &outlet{w: failing{syscall.ENOSPC}, pipe: func() { t.Error("a full disk is no lost reader") }}
	if _, err := full.Write([]byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
}

// Which server, in the order of the package doc.
func TestTarget(t *testing.T) {
	s := newShell(t)
	contexts := filepath.Join(s.env["HOME"], ".config", "nats")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(contexts, "context", "one.json"), `{"description":"","url":"nats://one:1","token":"t1","user":"u","password":"p","creds":"","nkey":"n","jetstream_domain":"x"}`)
	write(filepath.Join(contexts, "context", "two.json"), `{"url":"nats://two:2","creds":"/c"}`)
	write(filepath.Join(contexts, "context", "bad.json"), `{"url":`)

	one := &target{url: "nats://one:1", auth: client.Auth{Token: "t1", User: "u", Password: "p", NKeyFile: "n"}}
	two := &target{url: "nats://two:2", auth: client.Auth{CredsFile: "/c"}}
	choose := func(f connFlags, want *target) {
		t.Helper()
		a := &app{sys: s.system(io.Discard, io.Discard)}
		got, err := a.target(f)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(target{})); d != "" {
			t.Error(d)
		}
	}
	refuse := func(f connFlags) {
		t.Helper()
		a := &app{sys: s.system(io.Discard, io.Discard)}
		if got, err := a.target(f); err == nil || wire.CodeOf(err) == "" {
			t.Errorf("%+v, %v", got, err)
		}
	}

	choose(connFlags{}, nil)
	running, err := runfile.Write(s.runtime, runfile.State{URL: "nats://127.0.0.1:7", Token: "own"})
	if err != nil {
		t.Fatal(err)
	}
	own := &target{url: "nats://127.0.0.1:7", auth: client.Auth{Token: "own"}}
	choose(connFlags{}, own)
	choose(connFlags{server: "localhost:7"}, own)
	choose(connFlags{server: "localhost:7", creds: "/c"}, &target{url: "localhost:7", auth: client.Auth{CredsFile: "/c"}})
	choose(connFlags{server: "nats://h:7"}, &target{url: "nats://h:7"})
	write(filepath.Join(contexts, "context.txt"), "two\n")
	choose(connFlags{}, two)
	s.env["NATS_CONTEXT"] = "one"
	choose(connFlags{}, one)
	s.env["NATS_URL"], s.env["NATS_TOKEN"] = "nats://env:1", "t"
	choose(connFlags{}, &target{url: "nats://env:1", auth: client.Auth{Token: "t"}})
	s.env["WEFT_SERVER"], s.env["WEFT_TOKEN"] = "nats://env:2", "t2"
	choose(connFlags{}, &target{url: "nats://env:2", auth: client.Auth{Token: "t2"}})
	choose(connFlags{context: "one"}, one)
	choose(connFlags{context: "two", creds: "/d"}, &target{url: "nats://two:2", auth: client.Auth{CredsFile: "/d"}})
	choose(connFlags{server: "nats://flag:1"}, &target{url: "nats://flag:1", auth: client.Auth{Token: "t2"}})
	refuse(connFlags{context: "bad"})
	refuse(connFlags{context: "nosuch"})
	refuse(connFlags{context: "../context/one"})
	refuse(connFlags{context: "one", server: "x"})

	clear(s.env) // no home any more
	if err := os.Chmod(running.Path(), 0o644); err != nil {
		t.Fatal(err)
	}
	refuse(connFlags{})
	refuse(connFlags{server: "localhost:7"})
}
