// Command coordinator runs one coordinator of a weft fabric, beside a NATS
// server that is there or with one of its own (--embed).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "coordinator:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "coordinator [--embed | --server URL]",
		Short: "Run a coordinator: the registry of workers, leases, and the gate of channels",
		Long: `Run a coordinator: the registry of workers, leases, and the gate of channels.

With --embed it starts a NATS server of its own and leaves address and token in
a file that weft and worker of the same user find. Without, it uses the server
of --server or NATS_URL, with --creds, --token or the NATS_* variables, or the
token of the user's own running server at that address.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f, cmd.ErrOrStderr()) },
	}
	f.bind(cmd.Flags())
	return cmd
}
