package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/wire"
)

// openCwd opens the working directory through root, so that what was checked
// is what the command starts in, whatever happens to the names meanwhile.
func openCwd(root *os.Root, cwd string) (*os.File, error) {
	if cwd == "" {
		cwd = "."
	}
	if !filepath.IsLocal(cwd) || strings.Contains(cwd, "\x00") {
		return nil, cwdOutside(cwd)
	}
	f, err := root.OpenFile(cwd, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		// os.Root has no exported error for "leads out"; it is the one that is
		// not the kernel's.
		if _, ok := errors.AsType[syscall.Errno](err); !ok && !errors.Is(err, fs.ErrNotExist) {
			return nil, cwdOutside(cwd)
		}
		return nil, &StartError{Reason: wire.StartCwd, Path: cwd, Err: err}
	}
	if err := unix.Faccessat(int(f.Fd()), ".", unix.X_OK, unix.AT_EACCESS); err != nil {
		f.Close()
		return nil, &StartError{Reason: wire.StartCwd, Path: cwd, Err: err}
	}
	return f, nil
}

func cwdOutside(cwd string) error {
	return wire.Errorf(wire.CodeInvalidArgument,
		"working directory %q is outside the sandbox; give a path relative to its root", cwd)
}

// lookup finds the file that argv0 names, as a shell would: a name with a slash
// is relative to the working directory, any other is searched in searchPath. A
// file that is there and cannot be executed is reported only when no later
// directory has one that can.
func lookup(dirFD int, argv0, searchPath string) (string, error) {
	if strings.Contains(argv0, "/") {
		if err := executable(dirFD, argv0); err != nil {
			return "", &StartError{Reason: reasonFor(err), Path: argv0, Err: err}
		}
		return argv0, nil
	}
	failed := &StartError{Reason: wire.StartNotFound, Path: argv0, Err: syscall.ENOENT}
	if argv0 == "" {
		return "", failed
	}
	for dir := range strings.SplitSeq(searchPath, ":") {
		file := filepath.Join(dir, argv0)
		err := executable(dirFD, file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, syscall.EACCES) {
			failed.Reason, failed.Err = wire.StartNotExecutable, err
		}
	}
	return "", failed
}

func executable(dirFD int, file string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dirFD, file, &st, 0); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return syscall.EISDIR
	default:
		return syscall.EACCES
	}
	return unix.Faccessat(dirFD, file, unix.X_OK, unix.AT_EACCESS)
}

// reasonFor maps the error of looking a file up.
func reasonFor(err error) string {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return wire.StartNotFound
	}
	return wire.StartNotExecutable
}

// execReason maps the error of starting a file that lookup has found. ENOENT is
// then the interpreter of a script: bash says 126 for it, dash 127; the file
// itself is there, so not_executable it is.
func execReason(err error) string {
	for _, errno := range []syscall.Errno{
		syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES, syscall.EPERM, syscall.ENOEXEC,
		syscall.ETXTBSY, syscall.EISDIR, syscall.ELOOP, syscall.ELIBBAD, syscall.EINVAL,
	} {
		if errors.Is(err, errno) {
			return wire.StartNotExecutable
		}
	}
	return wire.StartOther
}
