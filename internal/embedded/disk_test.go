package embedded

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/internal/wire"
)

func TestFitStore(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		want, room, size int64
		code             wire.Code
	}{
		{want: 0, room: 1 << 40, size: 10 << 30},
		{want: 0, room: 1000 * mib, size: 800 * mib},
		{want: 0, room: 80 * mib, size: 64 * mib},
		{want: 0, room: 79 * mib, code: wire.CodeQuotaExceeded},
		{want: 800 * mib, room: 1000 * mib, size: 800 * mib},
		{want: 800*mib + 1, room: 1000 * mib, code: wire.CodeQuotaExceeded},
		{want: 20 << 30, room: 1 << 40, size: 20 << 30},
		{want: -1, room: 1 << 40, code: wire.CodeQuotaExceeded},
	} {
		size, err := fitStore(c.want, c.room)
		if size != c.size || wire.CodeOf(err) != c.code {
			t.Errorf("fitStore(%d, %d) = %d, %v; want %d, %q", c.want, c.room, size, err, c.size, c.code)
		}
	}
}

func TestUsedBytesCountsTheStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x", "a/y", "a/b/z"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<16), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := usedBytes(dir); err != nil || got < 3<<16 || got > 4<<16 {
		t.Fatalf("usedBytes = %d, %v; want about %d", got, err, 3<<16)
	}
}
