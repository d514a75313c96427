package runfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const testURL = "nats://127.0.0.1:4222"

func write(t *testing.T, dir, url, token string) *File {
	t.Helper()
	f, err := Write(dir, State{URL: url, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// plant puts a state by hand.
func plant(t *testing.T, dir string, port int, s State) string {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("coordinator-%d.json", port))
	body := fmt.Sprintf(`{"url":%q,"token":%q,"pid":%d,"started":%d,"boot":%q,"written":%q}`,
		s.URL, s.Token, s.PID, s.Started, s.Boot, s.Written.Format(time.RFC3339Nano))
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func self(url string, written time.Time) State {
	id, _ := identify(os.Getpid())
	return State{URL: url, Token: "t", PID: id.pid, Started: id.started, Boot: id.boot, Written: written}
}

func TestWriteReadRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weft")
	if _, err := Current(dir); !errors.Is(err, ErrNone) {
		t.Fatalf("before: %v", err)
	}
	f := write(t, dir, testURL, "tok")
	for path, want := range map[string]os.FileMode{dir: 0o700, f.Path(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode().Perm(), err, want)
		}
	}
	s, err := Current(dir)
	if err != nil || s.URL != testURL || s.Token != "tok" || s.PID != os.Getpid() {
		t.Fatalf("Current = %v, %v", s, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the directory holds %v, %v; want the file alone", entries, err)
	}
	for range 2 {
		if err := f.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Current(dir); !errors.Is(err, ErrNone) {
		t.Fatalf("after: %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, s := range []State{
		{}, {URL: "http://127.0.0.1:4222"}, {URL: "nats://tok@127.0.0.1:4222"},
		{URL: testURL, Token: "a\nb"}, {URL: testURL, Token: strings.Repeat(" ", 2)},
	} {
		dir := t.TempDir()
		if _, err := Write(dir, s); err == nil {
			t.Errorf("Write(%#v) passed", s)
		}
	}
}

func TestRemoveLeavesTheSuccessor(t *testing.T) {
	dir := t.TempDir()
	old := write(t, dir, testURL, "old")
	write(t, dir, testURL, "new")
	if err := old.Remove(); err != nil {
		t.Fatal(err)
	}
	if s, err := Current(dir); err != nil || s.Token != "new" {
		t.Fatalf("Current = %v, %v; want the successor", s, err)
	}
}

func TestCurrentIsTheNewestAlive(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	plant(t, dir, 1, self("nats://127.0.0.1:1", now.Add(-time.Hour)))
	plant(t, dir, 2, self("nats://127.0.0.1:2", now.Add(-time.Minute)))
	gone := self("nats://127.0.0.1:3", now)
	gone.Started++
	plant(t, dir, 3, gone)
	if err := os.WriteFile(filepath.Join(dir, "coordinator-4.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(plant(t, dir, 5, self("nats://127.0.0.1:5", now)), 0o640); err != nil {
		t.Fatal(err)
	}
	s, err := Current(dir)
	if err != nil || s.URL != "nats://127.0.0.1:2" {
		t.Fatalf("Current = %v, %v; want port 2", s, err)
	}
}

func TestStale(t *testing.T) {
	for name, change := range map[string]func(*State){
		"start time": func(s *State) { s.Started++ },
		"boot":       func(s *State) { s.Boot = "another" },
		"process":    func(s *State) { s.PID = 1 << 30 },
		"recycled":   func(s *State) { s.PID = os.Getppid() },
	} {
		dir := t.TempDir()
		s := self(testURL, time.Now())
		change(&s)
		plant(t, dir, 4222, s)
		if _, err := Current(dir); !errors.Is(err, ErrStale) {
			t.Errorf("%s: Current: %v, want stale", name, err)
		}
		if _, err := Find(dir, testURL); !errors.Is(err, ErrStale) {
			t.Errorf("%s: Find: %v, want stale", name, err)
		}
	}
}

func TestStaleWhenTheProcessDies(t *testing.T) {
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id, runs := identify(child.Process.Pid)
	if !runs {
		t.Fatal("the child does not run")
	}
	plant(t, dir, 4222, State{URL: testURL, PID: id.pid, Started: id.started, Boot: id.boot})
	if _, err := Find(dir, testURL); err != nil {
		t.Fatalf("alive: %v", err)
	}
	if err := errors.Join(stdin.Close(), child.Wait()); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(dir, testURL); !errors.Is(err, ErrStale) {
		t.Fatalf("dead: %v, want stale", err)
	}
}

func TestInsecureFile(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"group reads":  func(p string) error { return os.Chmod(p, 0o640) },
		"others read":  func(p string) error { return os.Chmod(p, 0o604) },
		"others write": func(p string) error { return os.Chmod(p, 0o602) },
		"fifo":         func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) },
		"directory":    func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"foreign": func(p string) error {
			if os.Getuid() != 0 {
				return os.Chmod(p, 0o666) // only root can give a file away
			}
			return os.Chown(p, 12345, -1)
		},
	} {
		dir := t.TempDir()
		if err := spoil(plant(t, dir, 4222, self(testURL, time.Now()))); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(dir, testURL); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: Find: %v, want insecure", name, err)
		}
		if _, err := Current(dir); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: Current: %v, want insecure", name, err)
		}
	}
}

func TestSymlinkOutOfTheDirectoryIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	outside := plant(t, t.TempDir(), 4222, self(testURL, time.Now()))
	if err := os.Symlink(outside, filepath.Join(dir, "coordinator-4222.json")); err != nil {
		t.Fatal(err)
	}
	if s, err := Find(dir, testURL); err == nil {
		t.Fatalf("followed to %v", s)
	}
}

func TestInsecureDirectory(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"group writes":  func(d string) error { return os.Chmod(d, 0o770) },
		"others write":  func(d string) error { return os.Chmod(d, 0o702) },
		"symbolic link": func(d string) error { return errors.Join(os.Rename(d, d+"2"), os.Symlink(d+"2", d)) },
		"foreign": func(d string) error {
			if os.Getuid() != 0 {
				return os.Chmod(d, 0o777)
			}
			return os.Chown(d, 12345, -1)
		},
	} {
		dir := filepath.Join(t.TempDir(), "weft")
		write(t, dir, testURL, "t")
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Current(dir); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: Current: %v, want insecure", name, err)
		}
		if _, err := Find(dir, testURL); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: Find: %v, want insecure", name, err)
		}
		if _, err := Write(dir, State{URL: testURL}); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: Write: %v, want insecure", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, testURL, "a")
	write(t, dir, "nats://127.0.0.1:4333", "b")
	for url, want := range map[string]string{
		testURL: "a", "127.0.0.1": "a", "nats://localhost": "a", "nats://LOCALHOST:4222/": "a",
		"nats://127.0.0.1:4333": "b",
		"nats://127.0.0.2:4222": "", "nats://[::1]:4222": "", "nats://example.com:4222": "",
		"nats://x@127.0.0.1:4222": "", "tls://127.0.0.1:4222": "", "nats://127.0.0.1:4444": "",
		testURL + "," + "nats://127.0.0.1:4333": "", "": "", "%": "",
	} {
		s, err := Find(dir, url)
		if s.Token != want || (want == "") != errors.Is(err, ErrNone) {
			t.Errorf("Find(%q) = %q, %v; want %q", url, s.Token, err, want)
		}
	}
}

func TestDamaged(t *testing.T) {
	good := `{"url":"nats://h:1","token":"t","pid":1,"started":2,"boot":"b","written":"2026-01-02T03:04:05Z"`
	if _, err := parse([]byte(good + "}")); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	for name, body := range map[string]string{
		"empty": "", "cut off": good, "unknown field": good + `,"x":1}`, "twice": good + `,"pid":2}`,
		"trailing": good + "}{}", "no process": `{"url":"nats://h:1","token":"t"}`,
		"no url": `{"token":"t","pid":1}`, "negative": strings.Replace(good, `"pid":1`, `"pid":-1`, 1) + "}",
		"too long": good + strings.Repeat(" ", maxSize) + "}",
	} {
		if _, err := parse([]byte(body)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, ErrInvalid)
		}
	}
}

func TestPrintingKeepsTheToken(t *testing.T) {
	s := State{URL: testURL, Token: "do-not-print-me", PID: 7}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, s); strings.Contains(got, s.Token) {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}

func TestDefaultDir(t *testing.T) {
	mine, tmp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	fallback := filepath.Join(tmp, fmt.Sprintf("weft-%d", os.Getuid()))
	for xdg, want := range map[string]string{
		mine: filepath.Join(mine, "weft"), "": fallback, "relative": fallback,
		filepath.Join(mine, "missing"): fallback,
	} {
		t.Setenv("XDG_RUNTIME_DIR", xdg)
		if got := DefaultDir(); got != want {
			t.Errorf("XDG_RUNTIME_DIR=%q: %s, want %s", xdg, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	rest := " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 " // fields 4 to 21
	for stat, want := range map[string]struct {
		started uint64
		runs    bool
	}{
		"7 (cat) S" + rest + "4711 1 2":       {4711, true},
		"7 (a) S 9 (b) c)) R" + rest + "12 1": {12, true},
		"7 (cat) Z" + rest + "4711 1 2":       {0, false},
		"7 (cat) S 1 1":                       {0, false},
		"":                                    {0, false},
	} {
		if started, runs := parseStat(stat); started != want.started || runs != want.runs {
			t.Errorf("parseStat(%q) = %d, %v; want %v", stat, started, runs, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"url":"nats://h:1","token":"t","pid":1,"started":2,"boot":"b","written":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"url":"nats://[::1]","pid":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		if len(b) > maxSize || s.check() != nil {
			t.Fatalf("accepted %q", b)
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add("nats://localhost:4222")
	f.Add("[::1]:1")
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := addressOf(raw)
		if err == nil && (a.host == "" || a.port == 0 || strings.ContainsAny(a.host, "@/?#")) {
			t.Fatalf("addressOf(%q) = %+v", raw, a)
		}
	})
}
