package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupTree is a directory of a cgroup v2 hierarchy.
type cgroupTree struct {
	path string
}

func (t *cgroupTree) sub(name string) (tree, error) {
	sub := &cgroupTree{path: filepath.Join(t.path, name)}
	if err := os.Mkdir(sub.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return sub, nil
}

func (t *cgroupTree) dir() (*os.File, error) {
	return os.OpenFile(t.path, unix.O_PATH|unix.O_DIRECTORY, 0)
}

func (t *cgroupTree) lead(int) {}

func (t *cgroupTree) kill() error {
	err := os.WriteFile(filepath.Join(t.path, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed: it was empty
	}
	return err
}

// alive walks the directories below too: a command that may write to the
// hierarchy can make some.
func (t *cgroupTree) alive() ([]int, error) {
	var pids []int
	err := t.walk(func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			// 0 is a process outside our PID namespace.
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// remove removes the directory and those below it. The kernel may still be
// busy with the last process for a moment after it is no longer listed.
func (t *cgroupTree) remove() error {
	var dirs []string
	if err := t.walk(func(dir string) error { dirs = append(dirs, dir); return nil }); err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		err := syscall.Rmdir(dirs[i])
		for try := 0; err == syscall.EBUSY && try < 20; try++ {
			time.Sleep(time.Duration(try) * time.Millisecond)
			err = syscall.Rmdir(dirs[i])
		}
		if err != nil && err != syscall.ENOENT {
			return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
		}
	}
	return nil
}

// walk calls visit for t's directory and all below it, parents first.
func (t *cgroupTree) walk(visit func(dir string) error) error {
	return filepath.WalkDir(t.path, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return ignoreGone(err)
		case d.IsDir():
			return visit(path)
		}
		return nil
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

// findCgroup returns the directory of this process in the cgroup v2 hierarchy,
// also where that is mounted beside v1 ones.
func findCgroup() (string, error) {
	own, err := ownCgroup()
	if err != nil {
		return "", err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// id parent major:minor root mountpoint options … - type source options
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		root, mount := fields[3], fields[4]
		rel, err := filepath.Rel(root, own)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		return filepath.Join(mount, rel), nil
	}
	return "", errors.New("no cgroup v2 hierarchy is mounted")
}

func ownCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return path, nil
		}
	}
	return "", errors.New("the kernel has no cgroup v2")
}
