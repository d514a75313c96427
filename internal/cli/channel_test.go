package cli

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/wire"
)

// detached opens a command and returns its channel's id.
func (s *shell) detached(t *testing.T, args ...string) string {
	t.Helper()
	r := s.weft(append([]string{"open", "--detach"}, args...)...)
	id := strings.TrimSpace(r.stdout)
	if r.code != 0 || checkChannel(id) != nil {
		t.Fatalf("open --detach: %+v", r)
	}
	return id
}

// lease acquires one on a stack of the test's own.
func (s *shell) lease(t *testing.T) string {
	t.Helper()
	s.up(t, fabric.Worker{})
	id := strings.TrimSpace(s.weft("lease", "acquire").stdout)
	if err := wire.CheckLeaseID(id); err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *shell) info(t *testing.T, id string) (ch client.ChannelInfo) {
	t.Helper()
	unmarshal(t, s.weft("channel", "info", id, "-o", "json"), &ch)
	return ch
}

func TestDetachAndAttach(t *testing.T) {
	s := newShell(t)
	lease := s.lease(t)
	id := s.detached(t, lease, "--", "sh", "-c", "cat; echo oops >&2; exit 3")
	s.stdin = strings.NewReader("hello\n")
	s.weft("attach", id).check(t, 3, "hello\n", "oops\n")

	var opened struct{ Channel, Lease string }
	unmarshal(t, s.weft("open", "-d", "-n", "-o", "json", lease, "--", "cat"), &opened)
	if opened.Lease != lease {
		t.Errorf("%+v", opened)
	}
	// -n: the command has no input, so it ends; what is left can be had all the same.
	s.stdin = strings.NewReader("not for it")
	s.weft("attach", "-n", opened.Channel).check(t, 0, "", "")
}

func TestAttach_JSON(t *testing.T) {
	s := newShell(t)
	lease := s.lease(t)
	id := s.detached(t, lease, "--", "sh", "-c", "read x; echo got $x; exit 4")
	s.stdin = strings.NewReader("it\n")
	r := s.weft("attach", "-o", "json", "--from", "0,0", id)
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if r.code != 4 || r.stdout != "got it\n" || len(lines) != 2 {
		t.Fatalf("%+v", r)
	}
	var at attached
	var end attachEnd
	if json.Unmarshal([]byte(lines[0]), &at) != nil || at.Channel != id || at.Lease != lease || at.Attach != 2 {
		t.Errorf("%s", lines[0])
	}
	if json.Unmarshal([]byte(lines[1]), &end) != nil || end.Outcome.String() != "exited(4)" || end.Position.Stdout != 7 {
		t.Errorf("%s", lines[1])
	}
}

func TestAttach_FromSaved(t *testing.T) {
	s := newShell(t)
	lease := s.lease(t)
	file := filepath.Join(t.TempDir(), "saved")
	id := s.detached(t, "--save", file, lease, "--", "cat")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	other := s.detached(t, lease, "--", "cat")
	s.weft("attach", "--from-saved", file, other).check(t, 125, "", "is of channel")
	s.stdin = strings.NewReader("through")
	s.weft("attach", "--from-saved", file, id).check(t, 0, "through", "")
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{{"{}", 0o644, "chmod 600"}, {"{", 0o600, "not what --save"}, {"{}", 0o600, "is of channel"}} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		s.weft("attach", "--from-saved", file, id).check(t, 125, "", c.want)
	}
	s.weft("attach", "--from-saved", file+"x", id).check(t, 125, "", "no such file")
	s.weft("channel", "kill", other).check(t, 0, "", "")
}

// A signal that would stop a command of open detaches from one that was attached to.
func TestAttach_Signals(t *testing.T) {
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(sig.String(), func(t *testing.T) {
			s := newShell(t)
			id := s.detached(t, s.lease(t), "--", "sh", "-c", "trap 'echo int' INT; echo ready; while [ \"$x\" != stop ]; do read x; done; echo end")
			r, w := io.Pipe()
			defer w.Close()
			done, out := s.started(t, r, "attach", id)
			heard := out.has("int\n")
			s.signal(syscall.SIGINT)
			<-heard
			s.signal(sig)
			(<-done).check(t, code, "ready\nint\n", "")
			s.stdin = strings.NewReader("stop\n")
			s.weft("attach", "-q", id).check(t, 0, "end\n", "")
		})
	}
}

func TestAttach_Observe(t *testing.T) {
	s := newShell(t)
	id := s.detached(t, s.lease(t), "--", "sh", "-c", "while read x; do echo $x; done; echo oops >&2; exit 6")
	r, w := io.Pipe()
	owner, out := newBackground(s, r, "attach", id)
	seen := out.has("one\n")
	if _, err := io.WriteString(w, "one\n"); err != nil {
		t.Fatal(err)
	}
	<-seen
	watcher, watched := newBackground(s, strings.NewReader("not read"), "attach", "--observe", "-o", "json", id)
	// It is there when it has seen something.
	there := watched.has("tick\n")
	for ready := false; !ready; {
		if _, err := io.WriteString(w, "tick\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-there:
			ready = true
		case r := <-watcher:
			t.Fatalf("the observer ended: %+v", r)
		default:
		}
	}
	w.Close()
	if r := <-owner; r.code != 6 || r.stderr != "oops\n" {
		t.Errorf("owner: %d %q", r.code, r.stderr)
	}
	got := <-watcher
	if got.code != 6 || strings.Contains(got.stdout, "one") || !strings.HasPrefix(got.stderr, "oops\n") || !strings.Contains(got.stderr, `"exited"`) {
		t.Errorf("observer: %d %q", got.code, got.stderr)
	}
}

// newBackground runs weft beside the test.
func newBackground(s *shell, stdin io.Reader, args ...string) (<-chan result, *buffer) {
	var out, errs buffer
	sys := s.system(&out, &errs)
	sys.Stdin = stdin
	done := make(chan result, 1)
	go func() {
		code := Main(args, sys)
		done <- result{code, out.String(), errs.String()}
	}()
	return done, &out
}

func TestChannelNouns(t *testing.T) {
	s := newShell(t)
	lease := s.lease(t)
	id := s.detached(t, "--kill-after", "1h", lease, "--", "sh", "-c", "exec 2>/dev/null; trap 'echo hup; exit 9' HUP; while :; do sleep 0.05; done")
	var list struct{ Channels []client.ChannelInfo }
	unmarshal(t, s.weft("channel", "ls", lease, "-o", "json"), &list)
	if len(list.Channels) != 1 || list.Channels[0].ID.String() != id || list.Channels[0].Attach != 1 {
		t.Errorf("%+v", list)
	}
	if r := s.weft("channel", "ls"); r.code != 0 || !strings.Contains(r.stdout, id) || !strings.Contains(r.stdout, "CHANNEL") {
		t.Errorf("%+v", r)
	}
	if r := s.weft("channel", "info", id); r.code != 0 || !strings.Contains(r.stdout, lease) {
		t.Errorf("%+v", r)
	}
	var ch client.ChannelInfo
	unmarshal(t, s.weft("channel", "signal", id, "HUP", "-o", "json"), &ch)
	if ch.Attach != 2 {
		t.Errorf("%+v", ch)
	}
	s.weft("attach", "-n", id).check(t, 9, "hup\n", "")
	s.weft("channel", "signal", id, "HUP").check(t, 125, "", "ended")

	killed := s.detached(t, lease, "--", "sleep", "60")
	unmarshal(t, s.weft("channel", "kill", killed, "-o", "json"), &ch)
	if ch.ID.String() != killed {
		t.Errorf("%+v", ch)
	}
	s.weft("attach", "-n", killed).check(t, 125, "", "ended on request")
	if ch := s.info(t, killed); ch.Outcome == nil || ch.Outcome.Kind != client.EndedByRequest {
		t.Errorf("%+v", ch)
	}
	list.Channels = nil
	unmarshal(t, s.weft("channel", "ls", "-o", "json"), &list)
	if list.Channels == nil || len(list.Channels) != 0 {
		t.Errorf("open channels: %+v", list)
	}
	unmarshal(t, s.weft("channel", "ls", "-a", "-o", "json"), &list)
	if len(list.Channels) != 2 {
		t.Errorf("all channels: %+v", list)
	}
	s.weft("channel", "info", "7d444840-9dc0-41d1-b245-5ffdce74fad2").check(t, 125, "", "NOT_FOUND")
}

func TestBadChannelCommandLines(t *testing.T) {
	s := newShell(t)
	id, lease := "7d444840-9dc0-41d1-b245-5ffdce74fad2", "79993e29-0f9d-5302-968c-05f887252c48"
	for name, args := range map[string][]string{
		"attach to nothing": {"attach"}, "attach to no id": {"attach", "x"}, "upper case": {"attach", strings.ToUpper(id)},
		"from": {"attach", "--from", "x", id}, "from below 0": {"attach", "--from", "-1", id}, "three froms": {"attach", "--from", "1,2,3", id},
		"observe and from": {"attach", "--observe", "--from", "1", id}, "two inputs": {"attach", "-n", "--whole-stdin", id},
		"saved": {"attach", "--from-saved", "/nonexistent", id}, "lease": {"channel", "ls", "a.*"}, "info": {"channel", "info", "*"},
		"kill": {"channel", "kill", ""}, "signal": {"channel", "signal", id, "NOSUCH"}, "no signal": {"channel", "signal", id},
		"noun": {"channel", "nosuch"}, "kill after": {"open", "--kill-after", "soon", lease, "--", "true"},
		"kill at once": {"open", "--kill-after", "0s", lease, "--", "true"}, "json": {"open", "-o", "json", lease, "--", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.weft(args...)
			if r.code != wire.ExitRefused || r.stdout != "" || !strings.HasPrefix(r.stderr, "weft: ") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%d %q %.300q", r.code, r.stdout, r.stderr)
			}
		})
	}
}
