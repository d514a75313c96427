package archtest

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

func report(t *testing.T, bad []string) {
	t.Helper()
	for _, b := range bad {
		t.Error(b)
	}
}

func TestImports(t *testing.T)      { report(t, checkImports(load(t, root), importRules())) }
func TestGoroutines(t *testing.T)   { report(t, checkGoroutines(load(t, root))) }
func TestPackageDocs(t *testing.T)  { report(t, checkDocs(load(t, root))) }
func TestNoSleepTests(t *testing.T) { report(t, checkSleeps(load(t, root))) }
func TestNoInit(t *testing.T)       { report(t, checkInit(load(t, root))) }

// A house that breaks every rule, so that the tests above are seen to fail.
func TestRulesBite(t *testing.T) {
	files := load(t, "testdata/badhouse")
	bad := slices.Concat(checkImports(files, importRules()), checkGoroutines(files), checkDocs(files), checkSleeps(files), checkInit(files))
	for i, line := range bad {
		bad[i], _, _ = strings.Cut(line, ";") // the reason is for people
	}
	slices.Sort(bad)
	want := []string{
		"client/client.go imports github.com/nats-io/nats.go: nats.go outside the adapters",
		"client/client.go imports github.com/weft-fabric/weft/internal/embedded -> github.com/nats-io/nats-server/v2/server: the server in the client library or the worker",
		"internal/gate has 2 package docs (internal/gate/a.go, internal/gate/b.go)",
		"internal/gate/a.go imports os/exec: NATS or processes in a pure package",
		"internal/gate/a.go:10 starts a goroutine",
		"internal/gate/a.go:12 starts a goroutine",
		"internal/lease/lease.go imports github.com/weft-fabric/weft/internal/natsbus -> github.com/nats-io/nats.go/jetstream: NATS or processes in a pure package",
		"internal/lease/lease_test.go imports github.com/nats-io/nats-server/v2/server: nats-server outside internal/embedded",
		"internal/lease/lease_test.go:20 sleeps outside a synctest bubble",
		"internal/nodoc has no package doc",
		"internal/sandbox/sandbox.go imports github.com/weft-fabric/weft/internal/natsbus -> github.com/nats-io/nats.go/jetstream: NATS in a driver",
		"internal/worker/worker.go imports github.com/weft-fabric/weft/client -> github.com/weft-fabric/weft/internal/embedded -> github.com/nats-io/nats-server/v2/server: the server in the client library or the worker",
		"internal/worker/worker.go imports github.com/weft-fabric/weft/client: the client library inside",
		"internal/worker/worker.go imports github.com/weft-fabric/weft/internal/natstest -> github.com/weft-fabric/weft/internal/embedded -> github.com/nats-io/nats-server/v2/server: the server in the client library or the worker",
		"internal/worker/worker.go imports github.com/weft-fabric/weft/internal/natstest: a helper for tests in production code",
		"internal/worker/worker.go:9 has func init",
	}
	if d := cmp.Diff(want, bad); d != "" {
		t.Fatalf("violations (-want +got):\n%s", d)
	}
}

// TestModulesOfBinaries makes a new dependency show in review. To accept one:
// go test ./internal/archtest -update
func TestModulesOfBinaries(t *testing.T) {
	dirs, err := filepath.Glob(root + "/cmd/*")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, dir := range dirs {
		if goFiles, _ := filepath.Glob(dir + "/*.go"); len(goFiles) > 0 {
			names = append(names, filepath.Base(dir))
		}
	}
	if err := os.MkdirAll("testdata/deps", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		compareModules(t, name)
	}
	lists, err := filepath.Glob("testdata/deps/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		if name := strings.TrimSuffix(filepath.Base(l), ".txt"); !slices.Contains(names, name) {
			t.Errorf("%s is the list of a binary that does not exist; remove it", l)
		}
	}
}

var update = flag.Bool("update", false, "write the lists of modules in testdata/deps")

func compareModules(t *testing.T, name string) {
	t.Helper()
	got := modules(t, "./cmd/"+name)
	file := "testdata/deps/" + name + ".txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("cmd/%s is made of other modules than %s says (-want +got); if that is meant, run go test ./internal/archtest -update\n%s", name, file, d)
	}
}

// modules lists what is linked into a package for linux/amd64, one path a line.
func modules(t *testing.T, pkg string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", pkg, err, stderr.String())
	}
	paths := strings.Fields(string(out))
	slices.Sort(paths)
	return strings.Join(slices.Compact(paths), "\n") + "\n"
}
