package sandboxtest

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// leakable duplicates f without close-on-exec.
func leakable(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Fatalf("the duplicate is close-on-exec: %v", err)
	}
	return os.NewFile(uintptr(fd), "leak")
}
