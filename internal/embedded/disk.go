package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weft-fabric/weft/internal/wire"
)

const (
	defaultStore = 10 << 30
	// minStore holds the buckets and one small tenant's log.
	minStore = 64 << 20
)

// storeSize returns the limit for the file store under dir. What the store
// holds already counts as room, else a restart would shrink it below its own
// streams and they would not come back.
func storeSize(dir string, want int64) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, wire.Errorf(wire.CodeUnavailable, "store directory %s: %v", dir, err)
	}
	used, err := usedBytes(dir)
	if err != nil {
		return 0, wire.Errorf(wire.CodeUnavailable, "store directory %s: %v", dir, err)
	}
	return fitStore(want, int64(st.Bavail)*int64(st.Bsize)+used)
}

// fitStore decides the limit from what was asked for (0: nothing) and the room.
func fitStore(want, room int64) (int64, error) {
	most := room / 10 * 8
	if want == 0 {
		want = min(defaultStore, most)
	}
	switch {
	case want < minStore:
		return 0, wire.Errorf(wire.CodeQuotaExceeded,
			"the store would get %d bytes and needs at least %d: free some disk or choose another store directory", want, minStore)
	case want > most:
		return 0, wire.Errorf(wire.CodeQuotaExceeded,
			"a store of %d bytes does not fit: 80 %% of the disk that is free are %d bytes", want, most)
	}
	return want, nil
}

// usedBytes sums the files under dir, as allocated on disk.
func usedBytes(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}
