package integration

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/internal/runfile"
)

// fabric is coordinator and worker as processes of their own.
type fabric struct {
	h                   *home
	coordinator, worker *process
	url                 string
}

// fabric starts them; workerArgs are added to the worker's.
func (h *home) fabric(coordinatorArgs, workerArgs []string) *fabric {
	h.t.Helper()
	f := h.coordinator(coordinatorArgs...)
	f.worker = f.startWorker(workerArgs...)
	return f
}

func (h *home) coordinator(args ...string) *fabric {
	h.t.Helper()
	f := &fabric{h: h}
	f.coordinator = h.start("coordinator", append([]string{"--embed", "--listen", "127.0.0.1:0"}, args...))
	f.coordinator.says(f.coordinator.err, `"message":"ready"`)
	for line := range strings.Lines(f.coordinator.err.String()) {
		var l struct{ Message, URL string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "ready" {
			f.url = l.URL
		}
	}
	if f.url == "" {
		h.t.Fatalf("no URL in %s", f.coordinator.err.String())
	}
	return f
}

func (f *fabric) startWorker(args ...string) *process {
	f.h.t.Helper()
	p := f.h.start("worker", append([]string{
		"--id", "w1", "--server", f.url, "--insecure-orders", "--slots", "8",
		"--state-dir", f.h.path("worker"), "--root", f.h.path("sandboxes"),
	}, args...))
	p.says(p.err, "registered")
	return p
}

// stop ends both and wants them to end well.
func (f *fabric) stop() {
	f.h.t.Helper()
	f.worker.stop()
	f.coordinator.stop()
}

// weft runs a command line against this fabric.
func (f *fabric) weft(stdin string, args ...string) result {
	f.h.t.Helper()
	return f.h.weft(stdin, f.args(args...)...)
}

// args puts --server after the command's name.
func (f *fabric) args(args ...string) []string {
	n := 1
	if args[0] == "lease" || args[0] == "worker" || args[0] == "channel" {
		n = 2
	}
	return append(append(append([]string{}, args[:n]...), "--server", f.url), args[n:]...)
}

func (f *fabric) acquire(args ...string) string {
	f.h.t.Helper()
	r := f.weft("", append([]string{"lease", "acquire"}, args...)...)
	if r.code != 0 {
		f.h.t.Fatalf("acquire: %+v", r)
	}
	return strings.TrimSpace(r.stdout)
}

// workers is weft worker ls.
func (f *fabric) workers() []workerInfo {
	f.h.t.Helper()
	r := f.weft("", "worker", "ls", "-o", "json")
	var list struct{ Workers []workerInfo }
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || r.code != 0 {
		f.h.t.Fatalf("worker ls: %v %+v", err, r)
	}
	return list.Workers
}

type workerInfo struct {
	Worker, State string
	AgeMS         int64
}

// token is what the coordinator left for the user's programs.
func (f *fabric) token() string {
	f.h.t.Helper()
	s, err := runfile.Find(f.h.path("run", "weft"), f.url)
	if err != nil {
		f.h.t.Fatal(err)
	}
	return s.Token
}

// status reads a number of /proc/<pid>/<file>, in the unit that stands there.
func (h *home) status(pid int, file, field string) int64 {
	h.t.Helper()
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/" + file)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				h.t.Fatal(err)
			}
			return n
		}
	}
	h.t.Fatalf("no %s in /proc/%d/%s", field, pid, file)
	return 0
}

// children counts the processes below pid.
func (h *home) children(pid int) int {
	h.t.Helper()
	stats, err := os.ReadDir("/proc")
	if err != nil {
		h.t.Fatal(err)
	}
	n := 0
	for _, e := range stats {
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if _, rest, ok := strings.Cut(string(b), ") "); ok && strings.Fields(rest)[1] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}
