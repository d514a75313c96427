package gate_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/wire"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// record is an active lease with everything in place.
func record(t *testing.T) lease.Record {
	t.Helper()
	r, err := lease.New(t0, lease.Request{Tenant: "acme", Incarnation: "inc", AcquireRequest: wire.AcquireRequest{IdempotencyKey: "k"}})
	if err == nil {
		r, err = r.Placed(t0, lease.Place{Worker: "w", Instance: "i", Route: "r", Provider: "local"})
	}
	if err == nil {
		r, err = r.Bound(t0, wire.BindReply{
			Instance: "i", State: wire.BindBound, Driver: "process", ProviderLeaseID: "sb",
			Metadata:     wire.Metadata{"sandboxProviderPlugin": "plug", "pluginId": "plug", "provider": "local"},
			Capabilities: []wire.Capability{wire.CapExecute, wire.CapDuplexCommandStream},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// open is an input that passes. It notes which facts were asked for.
type open struct {
	in    gate.Input
	rec   lease.Record
	asked []string
}

func newOpen(t *testing.T, mode wire.Mode) *open {
	o := &open{rec: record(t)}
	ask := func(what string) { o.asked = append(o.asked, what) }
	o.in = gate.Input{
		Mode: mode, Tenant: "acme", Epoch: o.rec.Epoch, Now: t0,
		Arguments: func() error { ask("arguments"); return nil },
		Lease:     func() (*lease.Record, error) { ask("lease"); return &o.rec, nil },
		Driver:    func(lease.Record) gate.Driver { ask("driver"); return gate.Driver{Registered: true, Duplex: true} },
		Capability: func(lease.Record, wire.Capability) (gate.Capability, error) {
			ask("capability")
			return gate.Capability{Declared: true, Verified: true}, nil
		},
		Disabled: func(string) bool { ask("disabled"); return false },
		Quota:    func(lease.Record) error { ask("quota"); return nil },
	}
	return o
}

func (o *open) check(t *testing.T, want wire.Code) *wire.Error {
	t.Helper()
	o.asked = nil
	r, err := gate.Check(o.in)
	if wire.CodeOf(err) != want {
		t.Fatalf("%v, want %q", err, want)
	}
	if err == nil && r.ID != o.rec.ID {
		t.Fatalf("judged lease %s, want %s", r.ID, o.rec.ID)
	}
	if err != nil && r.ID != "" {
		t.Fatal("a refusal hands out the lease")
	}
	return wire.AsError(err)
}

func TestPasses(t *testing.T) {
	o := newOpen(t, wire.ModeDuplex)
	o.check(t, "")
	if want := []string{"arguments", "lease", "driver", "capability", "disabled", "quota"}; !slices.Equal(o.asked, want) {
		t.Errorf("asked for %v, want %v", o.asked, want)
	}
	x := newOpen(t, wire.ModeExecute)
	x.in.Capability = func(_ lease.Record, c wire.Capability) (gate.Capability, error) {
		return gate.Capability{Declared: c == wire.CapExecute, Verified: c == wire.CapExecute}, nil
	}
	x.check(t, "")
	if want := []string{"arguments", "lease", "driver", "quota"}; !slices.Equal(x.asked, want) {
		t.Errorf("execute asked for %v, want %v", x.asked, want)
	}
}

// failures set an open up to fail one check. asks is the last fact that the
// check may ask for.
var failures = []struct {
	check int
	code  wire.Code
	asks  string
	set   func(*open)
}{
	{1, wire.CodeInvalidArgument, "arguments", func(o *open) {
		o.in.Arguments = func() error {
			o.asked = append(o.asked, "arguments")
			return (&wire.Exec{Mode: wire.ModeDuplex, Argv: []string{"a\x00b"}}).Check()
		}
	}},
	{2, wire.CodeNotFound, "lease", func(o *open) { o.in.Tenant = "other" }},
	{3, wire.CodeStaleEpoch, "lease", func(o *open) { o.in.Epoch.N++ }},
	{4, wire.CodeDriverNotRegistered, "driver", func(o *open) {
		o.in.Driver = func(lease.Record) gate.Driver { o.asked = append(o.asked, "driver"); return gate.Driver{} }
	}},
	{5, wire.CodeCapabilityDenied, "capability", func(o *open) {
		o.in.Capability = func(lease.Record, wire.Capability) (gate.Capability, error) {
			o.asked = append(o.asked, "capability")
			return gate.Capability{Declared: true}, nil
		}
	}},
	{6, wire.CodeDuplexUnsupported, "capability", func(o *open) { setMeta(o, "sandboxProviderPlugin", "") }},
	{7, wire.CodeMetadataIncomplete, "disabled", func(o *open) { setMeta(o, "pluginId", "") }},
	{8, wire.CodeRouteBusy, "quota", func(o *open) {
		o.in.Quota = func(lease.Record) error { o.asked = append(o.asked, "quota"); return gate.RouteBusy(16) }
	}},
}

func setMeta(o *open, key, value string) {
	m := wire.Metadata{}
	for k, v := range o.rec.Sandbox.Metadata {
		m[k] = v
	}
	m[key] = value
	o.rec.Sandbox.Metadata = m
}

func TestG003_TheEarlierCheckAnswersAndTheLaterDoesNotRun(t *testing.T) {
	for i, early := range failures {
		for _, late := range failures[i+1:] {
			t.Run(fmt.Sprintf("%d_before_%d", early.check, late.check), func(t *testing.T) {
				o := newOpen(t, wire.ModeDuplex)
				late.set(o)
				early.set(o)
				o.check(t, early.code)
				if last := o.asked[len(o.asked)-1]; last != early.asks {
					t.Errorf("asked for %v; check %d ends at %s", o.asked, early.check, early.asks)
				}
			})
		}
	}
}

func TestG003_ExecuteSkipsChecks6And7(t *testing.T) {
	for _, f := range failures {
		o := newOpen(t, wire.ModeExecute)
		f.set(o)
		want := f.code
		if f.check == 6 || f.check == 7 {
			want = ""
		}
		o.check(t, want)
	}
}

func TestG001_ArgumentsBeforeEverything(t *testing.T) {
	for name, argv := range map[string][]string{"argv is empty": {}, "argv[0] is empty": {""}, "argv[1] holds a NUL": {"a", "a\x00b"}} {
		o := newOpen(t, wire.ModeDuplex)
		o.in.Arguments = (&wire.Exec{Mode: wire.ModeDuplex, Argv: argv}).Check
		if e := o.check(t, wire.CodeInvalidArgument); !strings.Contains(e.Message, name) || o.asked != nil {
			t.Errorf("%q does not name %q, or %v was asked", e.Message, name, o.asked)
		}
	}
}

func TestG002_UnknownAndForeignAreTheSame(t *testing.T) {
	foreign := newOpen(t, wire.ModeDuplex)
	foreign.in.Tenant = "other"
	want := string(wire.Encode(foreign.check(t, wire.CodeNotFound)))
	for name, read := range map[string]func() (*lease.Record, error){
		"no record":        func() (*lease.Record, error) { return nil, nil },
		"NOT_FOUND of any": func() (*lease.Record, error) { return nil, wire.Errorf(wire.CodeNotFound, "key gone") },
	} {
		o := newOpen(t, wire.ModeDuplex)
		o.in.Lease = read
		if got := string(wire.Encode(o.check(t, wire.CodeNotFound))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := string(wire.Encode(lease.NotFound())); got != want {
		t.Errorf("other verbs answer %s, want %s", got, want)
	}
}

func TestStoreThatCannotBeRead(t *testing.T) {
	o := newOpen(t, wire.ModeDuplex)
	o.in.Lease = func() (*lease.Record, error) { return nil, errors.New("secret detail of the store") }
	if e := o.check(t, wire.CodeUnavailable); strings.Contains(e.Message, "secret") || !e.Retryable {
		t.Errorf("%+v", e)
	}
	o.in.Lease = func() (*lease.Record, error) { return nil, wire.Errorf(wire.CodePermissionDenied, "holder") }
	o.check(t, wire.CodePermissionDenied)
	o.in.Lease = nil
	o.check(t, wire.CodeUnavailable)
}

func TestG004_Driver(t *testing.T) {
	none := newOpen(t, wire.ModeDuplex)
	none.in.Driver = nil
	none.check(t, wire.CodeDriverNotRegistered)
	one := func(lease.Record) gate.Driver { return gate.Driver{Registered: true} }
	o := newOpen(t, wire.ModeDuplex)
	o.in.Driver = one
	if e := o.check(t, wire.CodeDriverNoDuplex); !strings.Contains(e.Message, "Lease.Execute") {
		t.Errorf("%q names no way on", e.Message)
	}
	x := newOpen(t, wire.ModeExecute)
	x.in.Driver = one
	x.check(t, "")
}

func TestG005_G006_Capability(t *testing.T) {
	for _, c := range []struct {
		name string
		have gate.Capability
		err  error
		says string
	}{
		{"not declared", gate.Capability{Verified: true}, nil, "not declared"},
		{"not verified", gate.Capability{Declared: true}, nil, "not verified"},
		{"settings cannot be read", gate.Capability{Declared: true, Verified: true}, errors.New("disk"), "cannot be read"},
		{"nothing known", gate.Capability{}, nil, "not declared"},
	} {
		for mode, name := range map[wire.Mode]string{wire.ModeDuplex: "duplexCommandStream", wire.ModeExecute: "execute"} {
			o := newOpen(t, mode)
			o.in.Capability = func(lease.Record, wire.Capability) (gate.Capability, error) { return c.have, c.err }
			e := o.check(t, wire.CodeCapabilityDenied)
			if !strings.Contains(e.Message, c.says) || !strings.Contains(e.Message, name) || e.Details["capability"] != name {
				t.Errorf("%s, %s: %+v", c.name, mode, e)
			}
			if strings.Contains(e.Message, "disk") {
				t.Errorf("%s: the cause crossed: %q", c.name, e.Message)
			}
			if slices.Contains(o.asked, "quota") {
				t.Errorf("%s: went on to %v", c.name, o.asked)
			}
		}
	}
	o := newOpen(t, wire.ModeDuplex)
	o.in.Capability = nil
	o.check(t, wire.CodeCapabilityDenied)

	n := newOpen(t, wire.ModeDuplex)
	var err error
	if n.rec, err = n.rec.Narrow(t0, wire.CapDuplexCommandStream); err != nil {
		t.Fatal(err)
	}
	n.check(t, wire.CodeCapabilityDenied)
	n.in.Mode = wire.ModeExecute
	n.check(t, "")

	s := newOpen(t, wire.ModeDuplex) // the worker said less of this sandbox than of its plugin
	s.rec.Sandbox.Capabilities = []wire.Capability{wire.CapExecute}
	s.check(t, wire.CodeCapabilityDenied)
}

func TestG007_NoSandboxProviderPlugin(t *testing.T) {
	for name, set := range map[string]func(*open){
		"no metadata": func(o *open) { o.rec.Sandbox.Metadata = nil },
		"empty":       func(o *open) { setMeta(o, "sandboxProviderPlugin", "") },
		"disabled":    func(o *open) { o.in.Disabled = func(p string) bool { return p == "plug" } },
	} {
		o := newOpen(t, wire.ModeDuplex)
		set(o)
		e := o.check(t, wire.CodeDuplexUnsupported)
		for _, want := range []string{"does not support duplex channels", "weft exec", "Lease.Execute"} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("%s: %q lacks %q", name, e.Message, want)
			}
		}
		o.in.Mode = wire.ModeExecute
		o.check(t, "")
	}
	o := newOpen(t, wire.ModeDuplex)
	o.in.Disabled = nil
	o.check(t, "")
}

func TestG008_NamesExactlyTheMissingKeys(t *testing.T) {
	keys := []string{"metadata.pluginId", "metadata.provider", "providerLeaseId"}
	for mask := 1; mask < 8; mask++ {
		o := newOpen(t, wire.ModeDuplex)
		var missing []string
		for i, k := range keys {
			if mask&(1<<i) == 0 {
				continue
			}
			missing = append(missing, k)
			if m, ok := strings.CutPrefix(k, "metadata."); ok {
				setMeta(o, m, "")
			} else {
				o.rec.Sandbox.ProviderLeaseID = ""
			}
		}
		e := o.check(t, wire.CodeMetadataIncomplete)
		for _, k := range keys {
			if got := strings.Contains(e.Message, k); got != slices.Contains(missing, k) {
				t.Errorf("missing %v: %q names %s: %t", missing, e.Message, k, got)
			}
		}
		if e.Details["missing"] != strings.Join(missing, ", ") {
			t.Errorf("details %v", e.Details)
		}
	}
}

func TestG010_QuotaTexts(t *testing.T) {
	if e := gate.RouteBusy(16); !strings.Contains(e.Message, "16") || e.Code != wire.CodeRouteBusy {
		t.Errorf("%+v", e)
	}
	if e := gate.QuotaExceeded("channels", 3); !strings.Contains(e.Message, "3 channels") || e.Code != wire.CodeQuotaExceeded {
		t.Errorf("%+v", e)
	}
	if e := gate.LogFull(); !strings.Contains(e.Message, "log") || e.Code != wire.CodeQuotaExceeded {
		t.Errorf("%+v", e)
	}
	o := newOpen(t, wire.ModeDuplex)
	o.in.Quota = nil
	o.check(t, wire.CodeUnavailable)
}

// TestEveryRefusalSaysWhatToDo: each text has a clause after a semicolon or a
// comma that is an instruction, and no code falls back to Execute but 4 to 7.
func TestEveryRefusalSaysWhatToDo(t *testing.T) {
	for code, e := range map[wire.Code]*wire.Error{
		wire.CodeUnavailable: gate.Undecided(), wire.CodeWorkerNotRunning: gate.WorkerNotRunning(),
		wire.CodeWorkerDraining: gate.WorkerDraining(), wire.CodeSandboxNotCached: gate.SandboxNotCached(),
		wire.CodeOpenFailed: gate.OpenFailed("its answer was cut off"), wire.CodeDeadlineExceeded: gate.OpenTimedOut(),
	} {
		if e.Code != code || !strings.Contains(e.Message, "; ") || code.FallsBackToExecute() {
			t.Errorf("%s: %+v", code, e)
		}
	}
	for code, e := range map[wire.Code]*wire.Error{
		wire.CodeOpenFailed: gate.AttachFailed("its answer was cut off"), wire.CodeDeadlineExceeded: gate.AttachTimedOut(),
		wire.CodeConflict: gate.AttachOvertaken(), wire.CodeUnavailable: gate.NotThere(), wire.CodeQuotaExceeded: gate.LogFull(),
	} {
		if e.Code != code || !strings.Contains(e.Message, "; ") || code.FallsBackToExecute() {
			t.Errorf("%s: %+v", code, e)
		}
	}
	for _, e := range []*wire.Error{gate.OpenFailed("100%d"), gate.AttachFailed("100%d")} {
		if strings.Contains(e.Message, "MISSING") {
			t.Errorf("a reason acts as a format: %q", e.Message)
		}
	}
}
