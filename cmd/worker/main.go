// Command worker runs a weft worker: it hosts a plugin, binds leases to
// sandboxes, and runs commands in them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
	"github.com/weft-fabric/weft/internal/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// flags are what the command line says.
type flags struct {
	cfg      worker.Config
	driver   string
	root     string
	logLevel string
	server   server
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a weft worker",
		Long: "Run a weft worker until SIGTERM or SIGINT.\n\n" +
			"The NATS server is taken from --server, else from NATS_URL, else it is the one of this\n" +
			"user's running coordinator. Credentials come from the flags, else from NATS_CREDS,\n" +
			"NATS_NKEY, NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CA, NATS_CERT and NATS_KEY, else\n" +
			"from the coordinator's state file if it is that coordinator's server.",
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.cfg.ID, "id", "", "the worker's name, a token (default: made of the host name)")
	fl.StringVar(&f.cfg.Plugin, "plugin", "shell", "id of the plugin that the worker hosts")
	fl.StringVar(&f.cfg.Provider, "provider", "", "key of the sandbox provider (default: the driver's name)")
	fl.StringVar(&f.driver, "driver", "process", "how sandboxes are made: process, or inline (one-shot commands only)")
	fl.IntVar(&f.cfg.Slots, "slots", 4, "leases held at once")
	fl.StringToStringVar(&f.cfg.Labels, "label", nil, "label `KEY=VALUE`, may be repeated")
	fl.StringVar(&f.cfg.StateDir, "state-dir", "", "directory for what survives a restart (default: below the user's state directory)")
	lim := &f.cfg.Limits
	fl.Int64Var(&lim.InFlightWorker, "in-flight", 0, "`BYTES` of output sent and not taken, all channels together (default 256 MiB)")
	fl.Int64Var(&lim.InFlightLease, "in-flight-lease", 0, "the same for the channels of one lease (default 16 MiB)")
	fl.Int64Var(&lim.Spill, "spill", 0, "`BYTES` of output kept on disk for a channel whose client is away (default 64 MiB; -1: none, the command waits)")
	fl.Int64Var(&lim.SpillWorker, "spill-all", 0, "the same for all channels together (default 4 GiB)")
	fl.StringVar(&f.root, "root", "", "directory for sandboxes, the worker's alone (default: in the state directory)")
	fl.BoolVar(&f.cfg.InsecureOrders, "insecure-orders", false, "take orders that nobody has signed; required until orders are signed")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVarP(&f.server.url, "server", "s", "", "URL of the NATS server")
	fl.StringVar(&f.server.creds, "creds", "", "file with NATS credentials")
	fl.StringVar(&f.server.token, "token", "", "NATS token (other users of this machine can read it on the command line)")
	return cmd
}

func (f *flags) run(ctx context.Context) (err error) {
	level, err := zerolog.ParseLevel(f.logLevel)
	if err != nil {
		return wire.Errorf(wire.CodeInvalidArgument, "--log-level is none of debug, info, warn, error")
	}
	f.cfg.Log = zerolog.New(os.Stderr).Level(level).With().Timestamp().Logger()
	if err := f.defaults(); err != nil {
		return err
	}
	if f.cfg.Bus, err = f.server.options(); err != nil {
		return err
	}
	f.cfg.Bus.Log = f.cfg.Log
	d, err := f.open(ctx)
	if err != nil {
		return err
	}
	f.cfg.Driver = d
	w, err := worker.New(f.cfg)
	if err == nil {
		err = w.Run(ctx)
	}
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// defaults fills in what depends on the host and the user.
func (f *flags) defaults() error {
	if f.cfg.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("no host name, give --id: %w", err)
		}
		if f.cfg.ID = tokenOf(host); f.cfg.ID == "" {
			return wire.Errorf(wire.CodeInvalidArgument, "the host name makes no worker name; give --id")
		}
	}
	if err := wire.CheckToken("--id", f.cfg.ID); err != nil {
		return err // before it becomes a directory's name
	}
	if f.cfg.StateDir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			home, err := os.UserHomeDir()
			if err != nil {
				return fmt.Errorf("no home directory, give --state-dir: %w", err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		f.cfg.StateDir = filepath.Join(base, "weft", "worker", f.cfg.ID)
	}
	if f.root == "" {
		f.root = filepath.Join(f.cfg.StateDir, "sandboxes")
	}
	return nil
}

func (f *flags) open(ctx context.Context) (sandbox.Driver, error) {
	c := sandbox.Config{Root: f.root}
	switch f.driver {
	case "process":
		return sandbox.NewProcess(ctx, c)
	case "inline":
		return sandbox.NewInline(ctx, c)
	}
	return nil, wire.Errorf(wire.CodeInvalidArgument, "--driver is neither process nor inline")
}

// tokenOf is what of a host name can be a token, "" if nothing can.
func tokenOf(host string) string {
	b := make([]byte, 0, len(host))
	for _, c := range []byte(host) {
		switch {
		case c >= 'A' && c <= 'Z':
			b = append(b, c+'a'-'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b = append(b, c)
		case c == '.': // the rest is the domain
			return trimToken(b)
		default:
			b = append(b, '-')
		}
	}
	return trimToken(b)
}
