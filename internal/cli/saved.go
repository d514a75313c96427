package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/client"
)

// maxSaved bounds a file of saved state.
const maxSaved = 64 << 10

// save writes what weft attach --from-saved needs to name, for nobody but the
// user to read. With no name it does nothing.
func (a *app) save(name string, ch *client.Channel) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(ch.Save(), "", "  ")
	if err != nil {
		return err
	}
	// A reader sees the old file or the new one, and nobody else either: the
	// temporary one is made with mode 0600.
	f, err := os.CreateTemp(filepath.Dir(name), ".weft-saved-")
	if err != nil {
		return notSaved(err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first failure is told
		return notSaved(err)
	}
	return nil
}

func notSaved(err error) error {
	return refused("--save: the channel is open, but its state was not written: %v", err)
}

// readSaved reads what save has written. Others may have read a file that is
// open to them.
func readSaved(name string) (s client.Saved, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return s, refused("--from-saved: %v", err)
	}
	if info.Mode().Perm()&0o077 != 0 || info.Size() > maxSaved {
		return s, refused("--from-saved: %s is open to others, or is no such file; it holds keys, so make it chmod 600", name)
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return s, refused("--from-saved: %v", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, refused("--from-saved: %s is not what --save has written", name)
	}
	return s, nil
}
