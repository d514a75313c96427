package duplex

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutants breaks the state machines in one place after the other and requires
// the simulator to notice within 500 seeds. It compiles the package once for each
// and is run by make mutants.
func TestMutants(t *testing.T) {
	if os.Getenv("WEFT_MUTANTS") == "" {
		t.Skip("SKIPPED: mutants are run by make mutants (WEFT_MUTANTS=1)")
	}
	files, err := filepath.Glob("testdata/mutants/*.mutant")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d mutants, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".mutant"), func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay(t, f), "-run", "^TestI4_Simulator$", "-seeds", "500", ".").CombinedOutput()
			if err == nil {
				t.Fatal("the simulator passed 500 seeds")
			}
			if !strings.Contains(string(out), "run it again") {
				t.Fatalf("the simulator did not fail on a seed:\n%s", out)
			}
			for line := range strings.SplitSeq(string(out), "\n") {
				if strings.Contains(line, "seed ") {
					t.Log(strings.TrimSpace(line))
					break
				}
			}
		})
	}
}

// overlay writes the mutated source beside the real one and returns the file
// that tells the compiler.
func overlay(t *testing.T, mutant string) string {
	t.Helper()
	m, err := os.ReadFile(mutant)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(m), "\n<<<<\n")
	was, rest, ok1 := strings.Cut(rest, "\n====\n")
	is, _, ok2 := strings.Cut(rest, "\n>>>>")
	name, ok3 := strings.CutPrefix(head, "file: ")
	src, err := os.ReadFile(name)
	if err != nil || !ok1 || !ok2 || !ok3 {
		t.Fatalf("%s is not a mutant: %v", mutant, err)
	}
	if strings.Count(string(src), was) != 1 {
		t.Fatalf("what %s replaces stands %d times in %s", mutant, strings.Count(string(src), was), name)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, name)
	real, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {real: changed}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	for name, data := range map[string][]byte{changed: []byte(strings.Replace(string(src), was, is, 1)), file: list} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}
