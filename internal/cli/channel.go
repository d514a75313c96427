package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// channelEnded is the state of a channel that is over.
const channelEnded = "ended"

func (a *app) channel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "List, look at, signal and kill the commands that run on channels",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.channelList(), a.channelInfo(), a.channelKill(), a.channelSignal())
	return cmd
}

func (a *app) channelList() *cobra.Command {
	var (
		conn connFlags
		o    output
		all  bool
	)
	cmd := &cobra.Command{
		Use:   "ls [LEASE]",
		Short: "List channels, of one lease or of all",
		Example: `  weft channel ls
  weft channel ls $LEASE -a -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lease := ""
			if len(args) == 1 {
				lease = args[0]
				if err := wire.CheckLeaseID(lease); err != nil {
					return err
				}
			}
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				channels, err := c.ListChannels(ctx, lease)
				if err != nil {
					return err
				}
				shown := []client.ChannelInfo{}
				for _, ch := range channels {
					if all || ch.State != channelEnded {
						shown = append(shown, ch)
					}
				}
				if o == asJSON {
					return writeJSON(a.sys.Stdout, struct {
						Channels []client.ChannelInfo `json:"channels"`
					}{shown})
				}
				rows := make([][]string, len(shown))
				for i, ch := range shown {
					rows[i] = []string{
						ch.ID.String(), ch.Lease, ch.State, string(ch.Mode), strconv.FormatUint(uint64(ch.Attach), 10),
						age(time.Since(ch.CreatedAt)), outcomeOf(ch),
					}
				}
				return table(a.sys.Stdout, []string{"CHANNEL", "LEASE", "STATE", "MODE", "ATTACH", "AGE", "OUTCOME"}, rows)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also ended ones")
	return cmd
}

func outcomeOf(ch client.ChannelInfo) string {
	if ch.Outcome == nil {
		return ""
	}
	return ch.Outcome.String()
}

func (a *app) channelInfo() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:     "info CHANNEL",
		Short:   "Show one channel",
		Example: "  weft channel info $CHANNEL -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onChannel(cmd.Context(), conn, args[0], func(ctx context.Context, c *client.Client) error {
				ch, err := c.GetChannel(ctx, "", args[0])
				if err != nil {
					return err
				}
				return a.showChannel(o, ch)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}

// onChannel is withClient after a look at the id.
func (a *app) onChannel(ctx context.Context, conn connFlags, id string, f func(context.Context, *client.Client) error) error {
	if err := checkChannel(id); err != nil {
		return err
	}
	return a.withClient(ctx, conn, f)
}

func (a *app) showChannel(o output, ch client.ChannelInfo) error {
	if o == asJSON {
		return writeJSON(a.sys.Stdout, ch)
	}
	ended, totals := "", [3]string{}
	if ch.EndedAt != nil {
		ended = stamp(*ch.EndedAt)
	}
	if t := ch.Totals; t != nil {
		for i, n := range [3]uint64{t.Stdin, t.Stdout, t.Stderr} {
			totals[i] = strconv.FormatUint(n, 10)
		}
	}
	return details(a.sys.Stdout, [][2]string{
		{"channel", ch.ID.String()}, {"lease", ch.Lease}, {"mode", string(ch.Mode)}, {"state", ch.State},
		{"attach", strconv.FormatUint(uint64(ch.Attach), 10)}, {"worker", ch.WorkerState},
		{"outcome", outcomeOf(ch)}, {"ended by", ch.EndedBy}, {"created", stamp(ch.CreatedAt)}, {"ended", ended},
		{"stdin bytes", totals[0]}, {"stdout bytes", totals[1]}, {"stderr bytes", totals[2]},
	})
}

func (a *app) channelKill() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:     "kill CHANNEL",
		Short:   "End the command of a channel and everything it has started",
		Example: "  weft channel kill $CHANNEL",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onChannel(cmd.Context(), conn, args[0], func(ctx context.Context, c *client.Client) error {
				ch, err := c.KillChannel(ctx, "", args[0])
				if err != nil || o != asJSON {
					return err
				}
				return writeJSON(a.sys.Stdout, ch)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}

func (a *app) channelSignal() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:   "signal CHANNEL SIGNAL",
		Short: "Send a signal to the command of a channel that nobody is attached to",
		Long: `Send a signal to the command of a channel and to its process group. Only the
holder of a channel has the right to, so weft attaches for a moment and detaches:
a client that is attached is fenced off. No output is taken.`,
		Example: `  weft channel signal $CHANNEL HUP`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wire.SignalNumber(args[1]) == 0 {
				return refused("that is not the name of a signal; names are such as INT, TERM, KILL")
			}
			return a.onChannel(cmd.Context(), conn, args[0], func(ctx context.Context, c *client.Client) error {
				if err := signalChannel(ctx, c, args[0], args[1]); err != nil || o != asJSON {
					return err
				}
				ch, err := c.GetChannel(ctx, "", args[0])
				if err != nil {
					return err
				}
				return writeJSON(a.sys.Stdout, ch)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}

func signalChannel(ctx context.Context, c *client.Client, id, name string) error {
	ch, err := c.Attach(ctx, "", id, client.AttachOptions{})
	if err != nil {
		return err
	}
	if err := ch.Signal(ctx, name); err != nil {
		// Closing the channel would end its command.
		_ = ch.Detach(ctx)
		return err
	}
	if err := ch.Detach(ctx); err != nil && client.CodeOf(err) != client.CodeChannelEnded {
		return err // the signal was sent; the command is left without a holder all the same
	}
	return nil
}
