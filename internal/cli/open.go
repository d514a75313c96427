package cli

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
)

// openFlags are the flags of weft open.
type openFlags struct {
	conn      connFlags
	command   commandFlags
	output    output
	detach    bool
	killAfter string
	save      string
}

func (a *app) open() *cobra.Command {
	var f openFlags
	cmd := &cobra.Command{
		Use:   "open LEASE -- COMMAND [ARG...]",
		Short: "Stream a command through a duplex channel on a lease you have",
		Long: `Stream a command through a duplex channel on a lease you have. Streams, signals
and exit status are those of weft run; the lease is renewed meanwhile and is
not released.

With --detach weft prints the channel's id and leaves: the command goes on, and
weft attach takes its output and feeds its input (with -n it gets none). Output
that nobody takes is kept by the worker up to a limit; then the command waits.`,
		Example: `  weft open $LEASE -- sh -c 'read x; echo got $x'
  CHANNEL=$(weft open --detach -n $LEASE -- make all)
  weft open --detach --kill-after 1h -o json $LEASE -- cat`,
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, argv, err := leaseAndCommand(cmd, args)
			if err != nil {
				return err
			}
			return a.runOpen(cmd.Context(), f, lease, argv)
		},
	}
	fs := cmd.Flags()
	f.conn.bind(fs)
	f.command.bind(fs)
	f.output.bind(fs)
	fs.BoolVarP(&f.detach, "detach", "d", false, "print the channel's id and leave the command running")
	fs.StringVar(&f.killAfter, "kill-after", "", "end the command when its client has been gone for so long, or never (default 30s; with --detach never)")
	fs.StringVar(&f.save, "save", "", "file to write what weft attach --from-saved needs; it is a secret")
	return cmd
}

// onDisconnect reads --kill-after.
func (f openFlags) onDisconnect() (client.OnDisconnect, error) {
	switch f.killAfter {
	case "":
		return client.OnDisconnect{Keep: f.detach}, nil
	case "never":
		return client.OnDisconnect{Keep: true}, nil
	}
	d, err := time.ParseDuration(f.killAfter)
	if err != nil || d <= 0 {
		return client.OnDisconnect{}, refused("--kill-after is neither a time such as 10m nor never")
	}
	return client.OnDisconnect{KillAfter: d}, nil
}

func (a *app) runOpen(ctx context.Context, f openFlags, id string, argv []string) error {
	cmd, err := a.command(f.command, argv)
	if err != nil {
		return err
	}
	if cmd.OnDisconnect, err = f.onDisconnect(); err != nil {
		return err
	}
	if f.output == asJSON && !f.detach {
		return refused("-o json is for --detach; what is printed else is the command's output")
	}
	return a.attended(ctx, f.conn, f.command, func(at *attendant, c *client.Client) error {
		lease, err := c.GetLease(at.setup, id)
		if err != nil {
			return interrupted(at.setup, err)
		}
		if f.detach {
			return interrupted(at.setup, a.openDetached(at.setup, f, lease, cmd))
		}
		lease.KeepAlive()
		// Whoever sees output can count on the saved state.
		saved := make(chan struct{})
		ready := sync.OnceFunc(func() { close(saved) })
		defer ready()
		ch, err := lease.Open(at.setup, cmd, a.streams(at, f.command, saved)...)
		if err != nil {
			return interrupted(at.setup, err)
		}
		if err := a.save(f.save, ch); err != nil {
			ready()
			return errors.Join(err, ch.Close())
		}
		ready()
		return a.serve(at, ch, argv[0], f.command.quiet, nil)
	})
}

// attended runs f with a client and an attendant for the signals.
func (a *app) attended(ctx context.Context, conn connFlags, cf commandFlags, f func(*attendant, *client.Client) error) error {
	log, err := a.logger(zerolog.Disabled)
	if err != nil {
		return err
	}
	t, err := a.target(conn)
	if err != nil {
		return err
	}
	if t == nil {
		return errNoServer()
	}
	at := a.attend(ctx, cf.grace)
	defer at.close()
	o := a.options(t, conn, log)
	if !cf.quiet {
		n := startNotices(a.sys.Stderr)
		defer n.close()
		o.OnNotice = n.tell
	}
	c, err := client.Connect(at.setup, o)
	if err != nil {
		return interrupted(at.setup, err)
	}
	defer within(closeTimeout, c.Close)
	return f(at, c)
}

// openDetached opens, says which channel it is, and lets go of it.
func (a *app) openDetached(ctx context.Context, f openFlags, lease *client.Lease, cmd client.Command) error {
	if !f.command.noStdin {
		cmd.Stdin = client.StdinPipe
	}
	ch, err := lease.Open(ctx, cmd)
	if err != nil {
		return err
	}
	if err := a.save(f.save, ch); err != nil {
		return errors.Join(err, ch.Close())
	}
	// A command that has ended already is no failure of the opening.
	if err := ch.Detach(ctx); err != nil && client.CodeOf(err) != client.CodeChannelEnded {
		return err
	}
	if f.output == asJSON {
		return writeJSON(a.sys.Stdout, struct {
			Channel string `json:"channel"`
			Lease   string `json:"lease"`
		}{ch.ID(), lease.ID()})
	}
	_, err = a.sys.Stdout.Write([]byte(ch.ID() + "\n"))
	return err
}
