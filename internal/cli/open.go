package cli

import (
	"context"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
)

func (a *app) open() *cobra.Command {
	var conn connFlags
	var f commandFlags
	cmd := &cobra.Command{
		Use:   "open LEASE -- COMMAND [ARG...]",
		Short: "Stream a command through a duplex channel on a lease you have",
		Long: `Stream a command through a duplex channel on a lease you have. Streams, signals
and exit status are those of weft run; the lease is renewed meanwhile and is
not released.`,
		Example: `  weft open $LEASE -- sh -c 'read x; echo got $x'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, argv, err := leaseAndCommand(cmd, args)
			if err != nil {
				return err
			}
			return a.runOpen(cmd.Context(), conn, f, lease, argv)
		},
	}
	conn.bind(cmd.Flags())
	f.bind(cmd.Flags())
	return cmd
}

func (a *app) runOpen(ctx context.Context, conn connFlags, f commandFlags, id string, argv []string) error {
	cmd, err := a.command(f, argv)
	if err != nil {
		return err
	}
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
	at := a.attend(ctx, f.grace)
	defer at.close()
	o := a.options(t, conn, log)
	if !f.quiet {
		n := startNotices(a.sys.Stderr)
		defer n.close()
		o.OnNotice = n.tell
	}
	c, err := client.Connect(at.setup, o)
	if err != nil {
		return interrupted(at.setup, err)
	}
	defer within(closeTimeout, c.Close)
	lease, err := c.GetLease(at.setup, id)
	if err != nil {
		return interrupted(at.setup, err)
	}
	lease.KeepAlive()
	return a.stream(at, lease, cmd, f, nil)
}
