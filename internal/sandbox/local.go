package sandbox

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/wire"
)

// Config says how to make a driver that runs commands on the worker's machine.
type Config struct {
	// Root is the directory for sandboxes, the driver's alone. It is made with
	// mode 0700; what an earlier run left in it is killed and removed.
	Root string
	// TreeKill is TreeKillCgroup or TreeKillScan to have that and fail without,
	// "" to take the best that works here.
	TreeKill string
}

// Local is the driver of commands on the worker's own machine.
type Local struct {
	// Set once.
	name   string
	plugin bool
	root   string
	lock   *os.File
	tree   tree
	caps   Capabilities

	mu     sync.Mutex
	closed bool                  // guarded by mu
	leases map[string]*provision // not being destroyed; guarded by mu
	boxes  map[*box]struct{}     // not destroyed; guarded by mu

	making sync.WaitGroup // Add under mu and only while not closed
}

// provision is one lease's sandbox, made once however many ask.
type provision struct {
	make func() (*box, error)
	box  *box // once made; guarded by Local.mu
}

// closeBound is how long Close waits for killed processes to go.
const closeBound = 10 * time.Second

// NewProcess makes the process driver: a plugin's sandboxes, each a directory
// and a process tree.
func NewProcess(ctx context.Context, cfg Config) (*Local, error) {
	return newLocal(ctx, cfg, "process", true)
}

// NewInline makes the inline driver: the same, run by the worker itself without
// a plugin behind it.
func NewInline(ctx context.Context, cfg Config) (*Local, error) {
	return newLocal(ctx, cfg, "inline", false)
}

func newLocal(ctx context.Context, cfg Config, name string, plugin bool) (*Local, error) {
	d := &Local{name: name, plugin: plugin, leases: map[string]*provision{}, boxes: map[*box]struct{}{}}
	err := d.takeRoot(cfg.Root)
	if err == nil {
		err = d.clean(ctx)
	}
	if err == nil {
		err = d.detect(ctx, cfg.TreeKill)
	}
	if err != nil {
		closeFiles(d.lock)
		return nil, fmt.Errorf("%s driver: %w", name, err)
	}
	return d, nil
}

// takeRoot makes the root and locks it: two drivers would take each other's
// sandboxes for leftovers.
func (d *Local) takeRoot(root string) error {
	if root == "" {
		return errors.New("no root directory given")
	}
	if err := checkRoot(root); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if d.root, err = filepath.EvalSymlinks(abs); err != nil {
		return err
	}
	if err := os.Chmod(d.root, 0o700); err != nil {
		return err
	}
	if d.lock, err = os.OpenFile(filepath.Join(d.root, rootMark), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s is used by another worker: %w", d.root, err)
	}
	return nil
}

// rootMark is the file that says that a directory is a root of ours, and its lock.
const rootMark = ".weft-sandboxes"

// checkRoot refuses a directory with somebody's files in it: a root is emptied.
func checkRoot(root string) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(root, rootMark)); err != nil {
		return fmt.Errorf("%s is not empty and was not made by weft; give a directory for sandboxes alone", root)
	}
	return nil
}

// isBox reports whether name is one that newID makes, of any driver.
func isBox(name string) bool {
	driver, id, _ := strings.Cut(name, "-")
	_, err := uuid.Parse(id)
	return err == nil && len(id) == 36 && (driver == "process" || driver == "inline")
}

// clean ends what an earlier run left, by whichever mechanism it was started.
func (d *Local) clean(ctx context.Context) error {
	if path, err := d.cgroupPath(); err == nil {
		old := &cgroupTree{path: path}
		if err := errors.Join(killTree(ctx, old), old.remove()); err != nil {
			return fmt.Errorf("leftovers: %w", err)
		}
	}
	entries, err := os.ReadDir(d.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !isBox(e.Name()) {
			continue
		}
		if err := errors.Join(killTree(ctx, &scanTree{mark: e.Name()}), removeAll(filepath.Join(d.root, e.Name()))); err != nil {
			return fmt.Errorf("leftovers: %w", err)
		}
	}
	return nil
}

// cgroupPath is the driver's own cgroup, the same for every run on this root.
func (d *Local) cgroupPath() (string, error) {
	own, err := findCgroup()
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, d.root)
	return filepath.Join(own, fmt.Sprintf("weft-%016x", h.Sum64())), nil
}

// detect chooses how trees are killed by doing it once.
func (d *Local) detect(ctx context.Context, want string) error {
	d.caps = Capabilities{Duplex: true, Execute: true, Isolation: "none"}
	switch want {
	case "", TreeKillCgroup:
		err := d.tryCgroup(ctx)
		if err == nil {
			d.caps.TreeKill, d.caps.WholeTree = TreeKillCgroup, true
			return nil
		}
		if want != "" {
			return fmt.Errorf("no cgroup: %w", err)
		}
		d.caps.Note = "no cgroup: " + err.Error()
	case TreeKillScan:
	default:
		return fmt.Errorf("unknown way %q to kill a tree", want)
	}
	d.caps.TreeKill, d.tree = TreeKillScan, &scanTree{}
	return d.selfTest(ctx)
}

func (d *Local) tryCgroup(ctx context.Context) error {
	path, err := d.cgroupPath()
	if err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	d.tree = &cgroupTree{path: path}
	_, err = os.Stat(filepath.Join(path, "cgroup.kill"))
	if err == nil {
		err = d.selfTest(ctx)
	}
	if err != nil {
		err = errors.Join(err, d.tree.remove())
	}
	return err
}

// selfTest runs a shell that waits for input in a sandbox and kills its tree.
func (d *Local) selfTest(ctx context.Context) error {
	// A name of its own: marks of all workers on the machine are one namespace.
	b, err := newBox(d, d.newID(), "")
	if err != nil {
		return err
	}
	p, err := b.Start(ctx, Command{Argv: []string{"/bin/sh", "-c", "umask; read x"}, Stdin: wire.StdinPipe})
	if err == nil {
		mask := make([]byte, 16)
		_, n, readErr := ReadReady(p.Stdout(), func() []byte { return mask })
		d.caps.FixedUmask = string(mask[:n]) == "0022\n"
		err = errors.Join(readErr, p.Kill(ctx), p.Close(ctx))
		if err == nil && p.Exit() != wire.SignaledBy("KILL", false) {
			err = fmt.Errorf("a killed command ended with %s", p.Exit())
		}
	}
	return errors.Join(err, b.Destroy(ctx))
}

func (d *Local) newID() string { return d.name + "-" + uuid.NewString() }

// Name implements [Driver].
func (d *Local) Name() string { return d.name }

// Plugin implements [Driver].
func (d *Local) Plugin() bool { return d.plugin }

// Capabilities implements [Driver].
func (d *Local) Capabilities() Capabilities { return d.caps }

// Provision implements [Driver].
func (d *Local) Provision(ctx context.Context, spec Spec) (Sandbox, error) {
	if spec.Lease == "" {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "a sandbox needs a lease")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, wire.Errorf(wire.CodeWorkerDraining, "the %s driver is closed; use another worker", d.name)
	}
	d.making.Add(1)
	defer d.making.Done()
	pr := d.leases[spec.Lease]
	if pr == nil {
		pr = &provision{make: sync.OnceValues(func() (*box, error) {
			return newBox(d, d.newID(), spec.Lease)
		})}
		d.leases[spec.Lease] = pr
	}
	d.mu.Unlock()

	b, err := pr.make()

	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if d.leases[spec.Lease] == pr {
			delete(d.leases, spec.Lease)
		}
		return nil, err
	}
	if d.leases[spec.Lease] == pr { // else it was destroyed meanwhile
		pr.box = b
		d.boxes[b] = struct{}{}
	}
	return b, nil
}

// unlist makes the next Provision of b's lease make a new sandbox.
func (d *Local) unlist(b *box) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if pr := d.leases[b.lease]; pr != nil && pr.box == b {
		delete(d.leases, b.lease)
	}
}

func (d *Local) forget(b *box) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.boxes, b)
}

// Close implements [Driver].
func (d *Local) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.making.Wait()
	d.mu.Lock()
	boxes := make([]*box, 0, len(d.boxes))
	for b := range d.boxes {
		boxes = append(boxes, b)
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	errs := make([]error, len(boxes))
	var wg sync.WaitGroup
	for i, b := range boxes {
		wg.Go(func() { errs[i] = b.Destroy(ctx) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = d.tree.remove()
	}
	if lockErr := d.lock.Close(); !errors.Is(lockErr, fs.ErrClosed) {
		err = errors.Join(err, lockErr)
	}
	return err
}
