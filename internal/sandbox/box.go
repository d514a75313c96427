package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/weft-fabric/weft/internal/wire"
)

// box is a directory and a tree. In the directory: root, where commands start
// and which is their HOME, and tmp.
type box struct {
	// Set once.
	id     string
	lease  string
	dir    string
	root   *os.Root
	tree   tree
	driver *Local
	turn   chan struct{} // capacity 1: held by the one that destroys

	destroyed bool // guarded by turn

	mu      sync.Mutex
	ending  bool                  // guarded by mu
	started int                   // names commands; guarded by mu
	procs   map[*Process]struct{} // not finished; guarded by mu

	starts   sync.WaitGroup // Add under mu and only while not ending
	watchers sync.WaitGroup
}

func newBox(d *Local, id, lease string) (_ *box, err error) {
	b := &box{
		id: id, lease: lease, dir: filepath.Join(d.root, id), driver: d,
		turn: make(chan struct{}, 1), procs: map[*Process]struct{}{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make sandbox: %w", err), removeAll(b.dir))
		}
	}()
	for _, dir := range []string{b.dir, b.path("root"), b.path("tmp")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if b.root, err = os.OpenRoot(b.path("root")); err != nil {
		return nil, err
	}
	if b.tree, err = d.tree.sub(id); err != nil {
		return nil, errors.Join(err, b.root.Close())
	}
	return b, nil
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

// ProviderLeaseID implements [Sandbox].
func (b *box) ProviderLeaseID() string { return b.id }

// Start implements [Sandbox].
func (b *box) Start(ctx context.Context, cmd Command) (*Process, error) {
	if err := checkCommand(cmd); err != nil {
		return nil, err
	}
	name, err := b.beginStart()
	if err != nil {
		return nil, err
	}
	defer b.starts.Done()
	cwd, err := openCwd(b.root, cmd.Cwd)
	if err != nil {
		return nil, err
	}
	defer cwd.Close()
	env, searchPath := b.environment(cmd, name)
	file, err := lookup(int(cwd.Fd()), cmd.Argv[0], searchPath)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return b.start(name, cmd.Stdin, spawnSpec{file: file, argv: cmd.Argv, env: env, cwd: cwd})
}

func checkCommand(cmd Command) error {
	if len(cmd.Argv) == 0 {
		return wire.Errorf(wire.CodeInvalidArgument, "argv is empty; name a program")
	}
	switch cmd.Stdin {
	case "", wire.StdinNone, wire.StdinPipe:
	default:
		return wire.Errorf(wire.CodeInvalidArgument, "stdin %q is not supported by this driver; use none or pipe", cmd.Stdin)
	}
	return CheckEnv(cmd.Env)
}

// beginStart names a command. Unless it fails, starts.Done must follow.
func (b *box) beginStart() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending {
		return "", wire.Errorf(wire.CodeSandboxNotCached, "sandbox %s is being destroyed; acquire a new lease", b.id)
	}
	b.starts.Add(1)
	b.started++
	return "c" + strconv.Itoa(b.started), nil
}

func (b *box) environment(cmd Command, name string) (env []string, searchPath string) {
	root := b.path("root")
	base := map[string]string{"HOME": root, "TMPDIR": b.path("tmp"), "PWD": filepath.Join(root, cmd.Cwd)}
	searchPath = defaultPath
	if p, ok := cmd.Env["PATH"]; ok {
		searchPath = p
	}
	return environment(base, cmd.Env, b.id+"/"+name), searchPath
}

func (b *box) start(name string, stdin wire.StdinKind, spec spawnSpec) (p *Process, err error) {
	t, err := b.tree.sub(name)
	if err != nil {
		return nil, &StartError{Reason: wire.StartOther, Path: spec.file, Err: err}
	}
	defer func() {
		if p == nil {
			err = errors.Join(err, t.remove())
		}
	}()
	pipes, err := openStdio(stdin)
	if err != nil {
		return nil, &StartError{Reason: wire.StartOther, Path: spec.file, Err: err}
	}
	defer pipes.closeChild()
	if spec.cgroup, err = t.dir(); err != nil {
		pipes.closeOurs()
		return nil, &StartError{Reason: wire.StartOther, Path: spec.file, Err: err}
	}
	defer closeFiles(spec.cgroup)
	spec.stdio = pipes.child
	child, err := spawn(spec)
	if err != nil {
		pipes.closeOurs()
		return nil, &StartError{Reason: execReason(err), Path: spec.file, Err: err}
	}
	t.lead(child.pid)
	p = &Process{
		pid: child.pid, pidfd: child.pidfd, tree: t, io: pipes, box: b,
		done: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	b.mu.Lock()
	b.procs[p] = struct{}{}
	b.mu.Unlock()
	b.watchers.Go(p.watch)
	return p, nil
}

func (b *box) forget(p *Process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.procs, p)
}

// Destroy implements [Sandbox].
func (b *box) Destroy(ctx context.Context) error {
	b.mu.Lock()
	b.ending = true
	b.mu.Unlock()
	b.driver.unlist(b)
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.turn }()
	if b.destroyed {
		return nil
	}
	b.starts.Wait() // a fork and exec each, no more begin
	if err := b.killAll(ctx); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	if err := errors.Join(b.tree.remove(), removeAll(b.dir)); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	b.destroyed = true
	b.driver.forget(b)
	return b.root.Close()
}

func (b *box) killAll(ctx context.Context) error {
	if err := killTree(ctx, b.tree); err != nil {
		return err
	}
	b.mu.Lock()
	procs := slices.Collect(maps.Keys(b.procs))
	b.mu.Unlock()
	var errs []error
	for _, p := range procs {
		errs = append(errs, p.finish(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.watchers.Wait() // every process is gone
	return nil
}

// removeAll removes dir also when a command took its own rights on directories
// away. Nothing runs in it any more.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(path, 0o700) // before the walk reads it
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
