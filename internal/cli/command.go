package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// commandFlags say how the command runs.
type commandFlags struct {
	env     []string
	cwd     string
	timeout time.Duration
	grace   time.Duration
	noStdin bool
	quiet   bool
}

func (f *commandFlags) bind(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass on ours; may be repeated")
	fs.StringVarP(&f.cwd, "cwd", "w", "", "working directory, relative to the sandbox")
	fs.DurationVar(&f.timeout, "timeout", 0, "end the command after this long (exit status 124)")
	fs.DurationVar(&f.grace, "grace", 0, "time between TERM and KILL when the command is ended (default 5s)")
	fs.BoolVarP(&f.noStdin, "no-stdin", "n", false, "give the command no input, and leave ours alone")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell about the connection and the worker")
}

// command checks argv and the flags before anything is asked of anybody.
func (a *app) command(f commandFlags, argv []string) (client.Command, error) {
	cmd := client.Command{Argv: argv, Cwd: f.cwd, Timeout: f.timeout, Grace: f.grace}
	if len(argv) == 0 {
		return cmd, refused("no command is given; write it after --, as in: -- uname -a")
	}
	if f.timeout < 0 || f.grace < 0 {
		return cmd, refused("--timeout or --grace is negative")
	}
	var err error
	if cmd.Env, err = a.environment(f.env); err != nil {
		return cmd, err
	}
	exec := wire.Exec{Mode: wire.ModeDuplex, Argv: cmd.Argv, Cwd: cmd.Cwd, Env: cmd.Env}
	if err := exec.Check(); err != nil {
		return cmd, err
	}
	if n := len(wire.Encode(exec)); n > wire.MaxExecBody {
		return cmd, wire.Errorf(wire.CodePayloadTooLarge,
			"the command with its arguments and environment is %d bytes; at most %d are taken; pass large data on standard input", n, wire.MaxExecBody)
	}
	return cmd, nil
}

// environment reads NAME=VALUE and NAME.
func (a *app) environment(entries []string) (map[string]string, error) {
	env := map[string]string{}
	for _, e := range entries {
		name, value, given := strings.Cut(e, "=")
		if !given {
			var ok bool
			if value, ok = a.sys.LookupEnv(name); !ok {
				return nil, refused("--env %s: there is no such variable here; write NAME=VALUE", name)
			}
		}
		env[name] = value
	}
	return env, nil
}

// workerFlags say which workers a lease may be on.
type workerFlags struct {
	plugin, provider string
	labels           []string
}

func (f *workerFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.plugin, "plugin", "", "plugin whose worker to use")
	fs.StringVar(&f.provider, "provider", "", "sandbox provider to use")
	fs.StringArrayVar(&f.labels, "label", nil, "NAME=VALUE that the worker must have; may be repeated")
}

func (f workerFlags) options() (client.AcquireOptions, error) {
	labels, err := parseLabels(f.labels)
	return client.AcquireOptions{Plugin: f.plugin, Provider: f.provider, Labels: labels}, err
}

func parseLabels(entries []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range entries {
		name, value, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			return nil, refused("--label %s is not NAME=VALUE", l)
		}
		labels[name] = value
	}
	return labels, nil
}

// leaseAndCommand splits LEASE -- ARGV…; the dashes keep weft's flags and the
// command's apart.
func leaseAndCommand(cmd *cobra.Command, args []string) (lease string, argv []string, err error) {
	dash := cmd.ArgsLenAtDash()
	if dash != 1 {
		return "", nil, refused("want one lease, then -- and the command: weft %s LEASE -- COMMAND", cmd.Name())
	}
	return args[0], args[1:], wire.CheckLeaseID(args[0])
}
