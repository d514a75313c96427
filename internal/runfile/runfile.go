package runfile

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// DefaultDir is the user's directory for state files. $XDG_RUNTIME_DIR counts if
// it is an absolute path to a directory of this user: sudo may leave another's.
func DefaultDir() string {
	uid := os.Getuid()
	if xdg := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(xdg) {
		if info, err := os.Stat(xdg); err == nil && info.IsDir() && ownerOf(info) == uid {
			return filepath.Join(xdg, "weft")
		}
	}
	return filepath.Join(os.TempDir(), "weft-"+strconv.Itoa(uid))
}

// File is a written state file, to be removed on a clean stop.
type File struct {
	dir, name string
	state     State
}

// Write notes that this process serves s.URL with s.Token and replaces an older
// file for the same port in one step. It makes dir with mode 0700 if it is
// missing and fails with ErrInsecure if dir is not the user's alone.
func Write(dir string, s State) (*File, error) {
	at, err := addressOf(s.URL)
	if err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	self, _ := identify(os.Getpid())
	s.PID, s.Started, s.Boot, s.Written = self.pid, self.started, self.boot, time.Now().UTC()
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	root, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name := fileName(at.port)
	if err := writeNew(root, name, wire.Encode(s)); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	return &File{dir: dir, name: name, state: s}, nil
}

func writeNew(root *os.Root, name string, b []byte) (err error) {
	tmp := name + "." + rand.Text() + ".tmp"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Remove(tmp))
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// Path is where the file is.
func (f *File) Path() string { return filepath.Join(f.dir, f.name) }

// Remove deletes the file unless a later server has replaced it. One that is
// gone already is no error.
func (f *File) Remove() error {
	root, err := openDir(f.dir)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	now, err := readFile(root, f.name)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err == nil && (now.PID != f.state.PID || now.Started != f.state.Started || now.Token != f.state.Token) {
		return nil
	}
	if err := root.Remove(f.name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

// Current returns the state of the user's server that was started last and
// still runs. Files that do not count are passed over; if none counts, the
// error says why not, else it is ErrNone.
func Current(dir string) (State, error) {
	root, err := openDir(dir)
	if err != nil {
		return State{}, err
	}
	defer root.Close()
	names, err := stateFiles(root)
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	var newest State
	var bad error
	for _, name := range names {
		s, err := read(root, name)
		switch {
		case errors.Is(err, ErrNone): // removed since it was listed
		case err != nil:
			bad = errors.Join(bad, fmt.Errorf("%s: %w", filepath.Join(dir, name), err))
		case s.Written.After(newest.Written):
			newest = s
		}
	}
	if newest.PID != 0 {
		return newest, nil
	}
	return State{}, cmp.Or(bad, ErrNone)
}

// Find returns the state of the user's running server at serverURL. Connect to
// the URL in the state, not to serverURL: a name may lead elsewhere, and the
// token is for that server only.
func Find(dir, serverURL string) (State, error) {
	at, err := addressOf(serverURL)
	if err != nil {
		return State{}, ErrNone
	}
	root, err := openDir(dir)
	if err != nil {
		return State{}, err
	}
	defer root.Close()
	s, err := read(root, fileName(at.port))
	if err != nil {
		return State{}, err
	}
	if found, err := addressOf(s.URL); err != nil || found != at {
		return State{}, ErrNone
	}
	return s, nil
}

// openDir opens dir if nobody but the user can write to it. The checks are made
// on what was opened, so that nothing can be put in its place.
func openDir(dir string) (*os.Root, error) {
	named, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	opened, err := root.Stat(".")
	if err == nil {
		err = checkDir(dir, named, opened)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

func checkDir(dir string, named, opened os.FileInfo) error {
	switch {
	case !os.SameFile(named, opened):
		return fmt.Errorf("%w: %s is a symbolic link; remove it", ErrInsecure, dir)
	case ownerOf(opened) != os.Getuid():
		return fmt.Errorf("%w: %s belongs to another user; set XDG_RUNTIME_DIR to a directory of yours", ErrInsecure, dir)
	case opened.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%w: others can write to %s; run chmod 700 on it", ErrInsecure, dir)
	}
	return nil
}

// read returns a state that counts: well formed, safe, its process alive.
func read(root *os.Root, name string) (State, error) {
	s, err := readFile(root, name)
	if err != nil {
		return State{}, err
	}
	now, runs := identify(s.PID)
	if !runs || now.started != s.Started || now.boot != s.Boot {
		return State{}, ErrStale
	}
	return s, nil
}

func readFile(root *os.Root, name string) (State, error) {
	// O_NONBLOCK so that a FIFO of that name does not hold us up.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return State{}, ErrNone
	}
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return State{}, fmt.Errorf("%w: it is not a regular file", ErrInsecure)
	case ownerOf(info) != os.Getuid():
		return State{}, fmt.Errorf("%w: it belongs to another user", ErrInsecure)
	case info.Mode().Perm()&0o077 != 0:
		return State{}, fmt.Errorf("%w: others can read or write it; start the server again to get a new token", ErrInsecure)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	return parse(b)
}

func stateFiles(root *os.Root) ([]string, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range all {
		if strings.HasPrefix(n, prefix) && strings.HasSuffix(n, suffix) {
			names = append(names, n)
		}
	}
	return names, nil
}

const prefix, suffix = "coordinator-", ".json"

func fileName(port uint16) string { return prefix + strconv.Itoa(int(port)) + suffix }

// ownerOf is -1 where the system does not tell.
func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
