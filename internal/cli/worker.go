package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
)

func (a *app) worker() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Look at the workers of the fabric",
		Args:  noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.workerList())
	return cmd
}

func (a *app) workerList() *cobra.Command {
	var (
		conn connFlags
		o    output
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List workers, whether they are live, and the age of their last beat",
		Example: "  weft worker ls",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), conn, func(ctx context.Context, c *client.Client) error {
				workers, err := c.Workers(ctx)
				if err != nil {
					return err
				}
				if o == asJSON {
					return writeJSON(a.sys.Stdout, struct {
						Workers []client.WorkerInfo `json:"workers"`
					}{append([]client.WorkerInfo{}, workers...)})
				}
				rows := make([][]string, len(workers))
				for i, w := range workers {
					rows[i] = workerRow(w)
				}
				return table(a.sys.Stdout, []string{"WORKER", "STATE", "BEAT", "PLUGIN", "PROVIDERS", "SLOTS", "LABELS", "REASON"}, rows)
			})
		},
	}
	conn.bind(cmd.Flags())
	o.bind(cmd.Flags())
	return cmd
}

func workerRow(w client.WorkerInfo) []string {
	providers := make([]string, len(w.Providers))
	for i, p := range w.Providers {
		providers[i] = p.Name
	}
	labels := make([]string, 0, len(w.Labels))
	for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
		labels = append(labels, k+"="+w.Labels[k])
	}
	return []string{
		w.Worker, w.State, age(time.Duration(w.AgeMS) * time.Millisecond), w.PluginID,
		strings.Join(providers, ","), fmt.Sprintf("%d/%d", w.SlotsUsed, w.Slots),
		strings.Join(labels, ","), w.Reason,
	}
}
