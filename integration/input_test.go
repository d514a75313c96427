package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// withStoppedReader gives a process a pipe as its output that nobody reads.
func withStoppedReader(t *testing.T) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout = w
		t.Cleanup(func() {
			r.Close()
			w.Close()
		})
	}
}

// named is the process of that name in a sandbox, or 0.
func (h *home) named(name string) int {
	for _, pid := range h.residents() {
		if comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err == nil && strings.TrimSpace(string(comm)) == name {
			return pid
		}
	}
	return 0
}

func (f *fabric) connect() *nats.Conn {
	f.h.t.Helper()
	nc, err := nats.Connect(f.url, nats.Token(f.token()))
	if err != nil {
		f.h.t.Fatal(err)
	}
	f.h.t.Cleanup(nc.Close)
	return nc
}

// Bad input gets a typed error in milliseconds; nothing is started and
// everything stays up.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric([]string{"--tenant", "default", "--tenant", "other"}, nil)
	lease := f.acquire()
	foreign := f.acquire("--tenant", "other")
	children := h.children(f.worker.pid())

	const unknown = "00000000-0000-4000-8000-000000000000"
	argv := []string{"open", lease, "--"}
	for range 9 {
		argv = append(argv, strings.Repeat("x", 120<<10))
	}
	for name, c := range map[string]struct {
		args []string
		code wire.Code
	}{
		"dot in an id":      {[]string{"open", "a.b", "--", "true"}, wire.CodeInvalidArgument},
		"star":              {[]string{"open", "*", "--", "true"}, wire.CodeInvalidArgument},
		"wildcard":          {[]string{"lease", "info", ">"}, wire.CodeInvalidArgument},
		"space":             {[]string{"lease", "release", "a b"}, wire.CodeInvalidArgument},
		"tenant":            {[]string{"run", "--tenant", "a.*", "--", "true"}, wire.CodeInvalidArgument},
		"unlisted tenant":   {[]string{"run", "--tenant", "third", "--", "true"}, wire.CodePermissionDenied},
		"plugin":            {[]string{"run", "--plugin", "a b", "--", "true"}, wire.CodeInvalidArgument},
		"empty argv":        {[]string{"open", lease, "--"}, wire.CodeInvalidArgument},
		"1 MB argv":         {argv, wire.CodePayloadTooLarge},
		"absolute cwd":      {[]string{"open", "--cwd", "/etc", lease, "--", "true"}, wire.CodeInvalidArgument},
		"cwd outside":       {[]string{"open", "--cwd", "../..", lease, "--", "true"}, wire.CodeInvalidArgument},
		"loader's variable": {[]string{"open", "-e", "LD_PRELOAD=x", lease, "--", "true"}, wire.CodeInvalidArgument},
		"unknown lease":     {[]string{"open", unknown, "--", "true"}, wire.CodeNotFound},
		"foreign lease":     {[]string{"open", foreign, "--", "true"}, wire.CodeNotFound},
		"release unknown":   {[]string{"lease", "release", unknown}, wire.CodeNotFound},
		"release foreign":   {[]string{"lease", "release", foreign}, wire.CodeNotFound},
	} {
		began := time.Now()
		r := f.weft("", c.args...)
		if r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, "["+string(c.code)+"]") {
			t.Errorf("%s: %+v; want %s", name, r, c.code)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
	a, b := f.weft("", "lease", "info", unknown), f.weft("", "lease", "info", foreign)
	if a != b {
		t.Errorf("an unknown lease and a foreign one are told apart: %+v, %+v", a, b)
	}
	if after := h.children(f.worker.pid()); after != children || len(h.residents()) != 0 {
		t.Errorf("the worker had %d processes and has %d", children, after)
	}
	f.weft("still", "open", lease, "--", "cat").want(t, 0, "still", "")
	f.stop()
}

// Malformed bodies on every endpoint of the coordinators and the worker.
func TestBadJSON(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.fabric(nil, nil)
	nc := f.connect()
	var all []string
	for _, v := range []string{
		subjects.APIAcquire, subjects.APIGet, subjects.APIList, subjects.APIRenew, subjects.APIRelease,
		subjects.APIOpen, subjects.APIExecute, subjects.APIChannel, subjects.APIChannels, subjects.APIKill, subjects.APIInfo,
	} {
		all = append(all, subjects.API("default", v))
	}
	for _, v := range []string{subjects.OpWorkers, subjects.OpLeases, subjects.OpChannels} {
		all = append(all, subjects.Operator(v))
	}
	for _, v := range []string{subjects.WRRegister, subjects.WRRenew, subjects.WREnded} {
		all = append(all, subjects.ToCoordinator("w1", v))
	}
	for _, v := range []string{subjects.WKBind, subjects.WKRelease, subjects.WKOpen, subjects.WKClose} {
		all = append(all, subjects.ToWorker("w1", v))
	}
	for _, subject := range all {
		for _, body := range []string{`{`, `[]`, `{"lease":null}`, `{"nosuch":1}`, "\xff", `{"lease":"a","lease":"b"}`, strings.Repeat("[", 1000), strings.Repeat(" ", 900<<10)} {
			msg, err := nc.Request(subject, []byte(body), 5*time.Second)
			if err != nil {
				t.Errorf("%s %.20q: %v", subject, body, err)
				continue
			}
			var e wire.Error
			if json.Unmarshal(msg.Data, &e) != nil || e.Code != wire.CodeInvalidArgument && e.Code != wire.CodePayloadTooLarge {
				t.Errorf("%s %.20q: answered %.200q", subject, body, msg.Data)
			}
			if got := msg.Header.Get("Nats-Service-Error-Code"); got != string(e.Code) {
				t.Errorf("%s %.20q: header %q, body %q", subject, body, got, e.Code)
			}
		}
	}
	h.weft("up", "run", "--server", f.url, "--", "cat").want(t, 0, "up", "")
	f.stop()
}

// A worker double whose bind leaves the provider's lease id out.
func TestG008_MetadataIncomplete(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	f := h.coordinator()
	d := newDouble(t, f.connect())
	lease := f.acquire()
	r := f.weft("", "open", lease, "--", "true")
	r.want(t, 125, "", "LEASE_METADATA_INCOMPLETE")
	if !strings.Contains(r.stderr, "providerLeaseId") {
		t.Errorf("%q does not name the key", r.stderr)
	}
	if n := d.opened.Load(); n != 0 {
		t.Errorf("the worker was asked to open %d times", n)
	}
	f.coordinator.stop()
}
