package cli

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/wire"
)

const (
	// releaseTimeout bounds the release of a lease at the end.
	releaseTimeout = 10 * time.Second
	// leaveTimeout bounds the release when weft is to leave at once.
	leaveTimeout = 3 * time.Second
	// closeTimeout bounds the end of the client: a writer that is blocked in a
	// pipe nobody reads cannot be woken, only left behind.
	closeTimeout = time.Second
	// teardownTimeout bounds the end of a stack of our own.
	teardownTimeout = 20 * time.Second
)

// runFlags are the flags of weft run.
type runFlags struct {
	conn    connFlags
	command commandFlags
	worker  workerFlags
	local   bool
}

func (a *app) run() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox of its own and stream it",
		Long: `Run a command in a sandbox of its own and stream it: acquire a lease, open a
channel, pass on standard input, output and error, release the lease. The exit
status is the command's; 124 timed out, 125 refused by weft, 126 and 127 not
executable and not found, 128+n ended by signal n, 255 link or worker lost.

With no server named by flag, environment or nats context, and no weft up of
yours running, it brings up server, coordinator and worker in this process.`,
		Example: `  printf 'hello weft\n' | weft run -- tr a-z A-Z
  weft run --env LEVEL=3 --timeout 1m -- sh -c 'echo $LEVEL'
  weft run --server nats://10.0.0.5:4222 --label gpu=yes -- nvidia-smi`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runCommand(cmd.Context(), f, args)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows the command's name is the command's
	f.conn.bind(fs)
	f.command.bind(fs)
	f.worker.bind(fs)
	fs.BoolVar(&f.local, "local", false, "use a stack of our own even if a server is configured or running")
	return cmd
}

func (a *app) runCommand(ctx context.Context, f runFlags, argv []string) error {
	cmd, err := a.command(f.command, argv)
	if err != nil {
		return err
	}
	acquire, err := f.worker.options()
	if err != nil {
		return err
	}
	log, err := a.logger(zerolog.Disabled)
	if err != nil {
		return err
	}
	var t *target
	if !f.local {
		if t, err = a.target(f.conn); err != nil {
			return err
		}
	}
	at := a.attend(ctx, f.command.grace)
	defer at.close()
	if t != nil {
		return a.runOn(at, a.options(t, f.conn, log), acquire, cmd, f, nil)
	}
	return a.runLocal(at, acquire, cmd, f, log)
}

// runLocal runs cmd on a stack of our own.
func (a *app) runLocal(at *attendant, acquire client.AcquireOptions, cmd client.Command, f runFlags, log zerolog.Logger) error {
	tenant := a.tenant(f.conn)
	if err := wire.CheckTenant(tenant); err != nil {
		return err
	}
	stack, err := fabric.Start(at.setup, fabric.Options{
		Tenants: []string{tenant}, Log: log,
		Worker: fabric.Worker{Plugin: f.worker.plugin, Provider: f.worker.provider, Slots: 1},
	})
	if err != nil {
		return interrupted(at.setup, err)
	}
	defer func() {
		within(teardownTimeout, func() {
			if err := stack.Stop(); err != nil {
				log.Warn().Err(err).Msg("the stack did not end well")
			}
		})
	}()
	o := client.Options{InProcess: stack.InProcess(), Auth: client.Auth{Token: stack.Token()}, Tenant: tenant, Name: "weft", Log: log}
	return a.runOn(at, o, acquire, cmd, f, stack.Done())
}

// runOn runs cmd on a server that is there.
func (a *app) runOn(at *attendant, o client.Options, acquire client.AcquireOptions, cmd client.Command, f runFlags, dead <-chan struct{}) error {
	if !f.command.quiet {
		n := startNotices(a.sys.Stderr)
		defer n.close()
		o.OnNotice = n.tell
	}
	c, err := client.Connect(at.setup, o)
	if err != nil {
		return interrupted(at.setup, err)
	}
	defer within(closeTimeout, c.Close)
	lease, err := c.AcquireLease(at.setup, acquire)
	if err != nil {
		return interrupted(at.setup, err)
	}
	defer a.release(at, lease, f.command.quiet)
	return a.stream(at, lease, cmd, f.command, dead)
}

// release gives the lease back, whatever has ended us.
func (a *app) release(at *attendant, lease *client.Lease, quiet bool) {
	limit := releaseTimeout
	select {
	case <-at.left:
		limit = leaveTimeout
	default:
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(at.setup), limit)
	defer cancel()
	if err := lease.Release(ctx); err != nil && !quiet {
		say(a.sys.Stderr, "the lease "+lease.ID()+" was not released; release it with weft lease release: "+sentence(err))
	}
}

// within runs f and waits for it, at most d; then f is left behind, and ends
// with the process.
func within(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
