package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the directory of the binaries that TestMain has built.
var bin string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "weft-integration-")
	if err != nil {
		return 1, err
	}
	defer func() { err = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "../cmd/...")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("go build: %w\n%s", err, out)
	}
	bin = dir
	return m.Run(), nil
}

// soak reports whether sizes are to be those that the tests are named for.
func soak() bool { return os.Getenv("WEFT_SOAK") == "1" }

// scaled is full in a soak and small otherwise.
func scaled[T any](small, full T) T {
	if soak() {
		return full
	}
	return small
}
