package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// leaseTTL is the default of a lease that is acquired for later: nothing renews
// it between two commands.
const leaseTTL = 30 * time.Minute

func (a *app) lease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Acquire, list, look at and release leases",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.leaseAcquire(), a.leaseList(), a.leaseInfo(), a.leaseRelease())
	return cmd
}

// noSuchCommand refuses what is no subcommand of a noun.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return refused("weft %s has no command %q; weft %s --help lists them", cmd.Name(), args[0], cmd.Name())
}

func (a *app) leaseAcquire() *cobra.Command {
	var (
		conn    connFlags
		on      workerFlags
		o       output
		env     string
		ttl     time.Duration
		life    time.Duration
		idemKey string
	)
	cmd := &cobra.Command{
		Use:   "acquire",
		Short: "Acquire a lease and print its id",
		Long: `Acquire a lease and print its id. Release it when it is no longer needed: this
version does not end a lease that nobody renews before its life is over.`,
		Example: `  LEASE=$(weft lease acquire)
  weft lease acquire --label gpu=yes --ttl 5m -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := on.options()
			if err != nil {
				return err
			}
			opts.Environment, opts.TTL, opts.Life, opts.IdempotencyKey = env, ttl, life, idemKey
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				l, err := c.AcquireLease(ctx, opts)
				if err != nil {
					return err
				}
				if o == asJSON {
					return writeJSON(a.sys.Stdout, l.Info())
				}
				_, err = a.sys.Stdout.Write([]byte(l.ID() + "\n"))
				return err
			})
		},
	}
	fs := cmd.Flags()
	conn.bind(fs)
	on.bind(fs)
	o.bind(fs)
	fs.StringVar(&env, "environment", "", "what the sandbox is for; a name for people")
	fs.DurationVar(&ttl, "ttl", leaseTTL, "how long the lease lasts unused")
	fs.DurationVar(&life, "life", 0, "hard end of the lease (default 168h)")
	fs.StringVar(&idemKey, "key", "", "idempotency key: a repeat with it returns the same lease")
	return cmd
}

func (a *app) leaseList() *cobra.Command {
	var (
		conn connFlags
		o    output
		all  bool
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List leases",
		Example: "  weft lease ls -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				leases, err := c.ListLeases(ctx)
				if err != nil {
					return err
				}
				if !all {
					leases = slices.DeleteFunc(leases, func(l client.LeaseInfo) bool { return ended(l.State) })
				}
				if o == asJSON {
					return writeJSON(a.sys.Stdout, struct {
						Leases []client.LeaseInfo `json:"leases"`
					}{append([]client.LeaseInfo{}, leases...)})
				}
				rows := make([][]string, len(leases))
				for i, l := range leases {
					rows[i] = []string{
						l.ID, l.State, l.Environment, l.Metadata[wire.MetadataProvider],
						age(time.Since(l.CreatedAt)), stamp(l.ExpiresAt), l.Reason,
					}
				}
				return table(a.sys.Stdout, []string{"LEASE", "STATE", "ENVIRONMENT", "PROVIDER", "AGE", "EXPIRES", "REASON"}, rows)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also ended ones")
	return cmd
}

// ended reports whether a lease in that state is over.
func ended(state string) bool {
	switch state {
	case "released", "expired", "lost", "failed":
		return true
	}
	return false
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) leaseInfo() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:     "info LEASE",
		Short:   "Show one lease",
		Example: "  weft lease info $LEASE -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wire.CheckLeaseID(args[0]); err != nil {
				return err
			}
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				l, err := c.GetLease(ctx, args[0])
				if err != nil {
					return err
				}
				if o == asJSON {
					return writeJSON(a.sys.Stdout, l.Info())
				}
				return details(a.sys.Stdout, leaseDetails(l.Info()))
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}

func leaseDetails(l client.LeaseInfo) [][2]string {
	caps := make([]string, len(l.Capabilities))
	for i, c := range l.Capabilities {
		caps[i] = string(c)
	}
	out := [][2]string{
		{"lease", l.ID}, {"tenant", l.Tenant}, {"state", l.State}, {"reason", l.Reason},
		{"environment", l.Environment}, {"driver", l.Driver}, {"provider lease", l.ProviderLeaseID},
		{"capabilities", strings.Join(caps, " ")},
		{"created", stamp(l.CreatedAt)}, {"expires", stamp(l.ExpiresAt)},
	}
	for _, k := range slices.Sorted(maps.Keys(l.Metadata)) {
		out = append(out, [2]string{printable(k), l.Metadata[k]})
	}
	return out
}

func (a *app) leaseRelease() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:     "release LEASE [LEASE...]",
		Short:   "Release leases: end their commands and remove their sandboxes",
		Example: "  weft lease release $LEASE",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range args {
				if err := wire.CheckLeaseID(id); err != nil {
					return err
				}
			}
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				for _, id := range args {
					l, err := c.GetLease(ctx, id)
					if err == nil {
						err = l.Release(ctx)
					}
					if err != nil {
						return err
					}
					if o == asJSON {
						if err := writeJSON(a.sys.Stdout, l.Info()); err != nil {
							return err
						}
					}
				}
				return nil
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}
