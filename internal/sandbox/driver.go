package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Driver makes sandboxes and runs commands in them. All methods may be called
// concurrently.
type Driver interface {
	// Name is the driver's key in configuration and records: "process", "inline".
	Name() string
	// Plugin reports whether its sandboxes belong to a plugin. A lease on a
	// driver that is none gets no metadata.sandboxProviderPlugin.
	Plugin() bool
	// Capabilities are what the driver found that it can do on this machine.
	Capabilities() Capabilities
	// Provision makes the sandbox of spec.Lease. For a lease that has one it
	// returns that one. After Close it fails with WORKER_DRAINING.
	Provision(ctx context.Context, spec Spec) (Sandbox, error)
	// Close destroys every sandbox. It may be called again.
	Close() error
}

// Capabilities are a driver's promises, verified when it was made.
type Capabilities struct {
	Duplex     bool   `json:"duplexCommandStream"`
	Execute    bool   `json:"execute"`
	TreeKill   string `json:"treeKill"`       // TreeKillCgroup or TreeKillScan
	WholeTree  bool   `json:"wholeTree"`      // no descendant escapes the end of its command while the worker lives
	Isolation  string `json:"isolation"`      // "none": files, network and users are the worker's
	FixedUmask bool   `json:"fixedUmask"`     // commands start with umask 022; else with the worker's
	Note       string `json:"note,omitempty"` // why a stronger mechanism is not used
}

// How a command's whole tree is found and killed.
const (
	TreeKillCgroup = "cgroup"
	TreeKillScan   = "environ-scan"
)

// Spec says what a sandbox is for.
type Spec struct {
	Lease       string
	Tenant      string
	Environment string
}

// Sandbox is one lease's place to run commands.
type Sandbox interface {
	// ProviderLeaseID is the driver's own name for the sandbox, never empty.
	ProviderLeaseID() string
	// Start starts cmd. ctx bounds the start only. It fails with *StartError
	// when the command itself cannot be started, with *wire.Error when it must
	// not be, and then nothing is running.
	Start(ctx context.Context, cmd Command) (*Process, error)
	// Destroy kills everything in the sandbox and removes its files. When it
	// returned nil nothing is left; after an error it may be called again.
	Destroy(ctx context.Context) error
}

// Command is one program to run. No shell touches Argv.
type Command struct {
	Argv  []string
	Cwd   string            // relative to the sandbox root, "" is the root
	Env   map[string]string // added to the fixed environment, see CheckEnv
	Stdin wire.StdinKind    // StdinNone ("" too) is /dev/null; StdinPTY is refused
}

// DefaultDrainBound is how long descendants may hold a finished command's pipes.
const DefaultDrainBound = 2 * time.Second

// StartError says that a command could not be started. Reason is one of the
// wire.Start constants and becomes the outcome start_failed(Reason):
//
//   - not_found (a shell's 127): no such file, or no such name in PATH
//   - not_executable (126): a directory, no execute permission, a format the
//     kernel does not know, a script whose interpreter is missing
//   - cwd: the working directory is missing or cannot be entered
//   - other: the machine refused (out of memory, processes, descriptors)
type StartError struct {
	Reason string
	Path   string
	Err    error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start %q: %s: %v", e.Path, e.Reason, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }
