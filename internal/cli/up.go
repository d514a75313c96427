package cli

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/fabric"
	"github.com/weft-fabric/weft/internal/wire"
)

// upFlags are the flags of weft up.
type upFlags struct {
	listen, dir, driver string
	slots               int
	labels, tenants     []string
	lostAfter           time.Duration
}

func (f *upFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "address of the NATS server; port 0 for any free one")
	fs.StringVar(&f.dir, "store-dir", "", "directory for store and sandboxes, kept at the end (default: a temporary one that goes)")
	fs.StringVar(&f.driver, "driver", "process", "process, or inline for a worker without a plugin")
	fs.IntVar(&f.slots, "slots", fabric.DefaultSlots, "how many leases the worker holds at once")
	fs.StringArrayVar(&f.labels, "label", nil, "NAME=VALUE of the worker; may be repeated")
	fs.StringArrayVar(&f.tenants, "tenant", []string{"default"}, "tenant to serve; may be repeated")
	fs.DurationVar(&f.lostAfter, "worker-lost-after", time.Minute, "silence after which what was on a worker is written lost")
}

func (a *app) up() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run server, coordinator and worker here for other terminals, until Ctrl-C",
		Long: `Run server, coordinator and worker in this process, on a port, until Ctrl-C.

The server asks for a token, which the other weft commands of the same user find
by themselves.`,
		Example: `  weft up
  weft up --listen 127.0.0.1:4222 --slots 8`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runUp(cmd.Context(), f) },
	}
	f.bind(cmd.Flags())
	return cmd
}

func (a *app) runUp(ctx context.Context, f upFlags) error {
	log, err := a.logger(zerolog.InfoLevel)
	if err != nil {
		return err
	}
	labels, err := parseLabels(f.labels)
	if err != nil {
		return err
	}
	if f.listen == "" {
		return refused("--listen is empty; give host:port, port 0 for any free one")
	}
	if f.lostAfter != 0 && f.lostAfter < coordinator.MinWorkerLostAfter {
		return refused("--worker-lost-after is %s; it is at least %s, which it takes to suspect and ask a worker", f.lostAfter, coordinator.MinWorkerLostAfter)
	}
	ctx, stop := a.interruptible(ctx)
	defer stop()
	// A log line to a pipe without a reader is to fail, not to end weft before it
	// has cleaned up.
	defer a.sys.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)()
	stack, err := fabric.Start(ctx, fabric.Options{
		Listen: f.listen, Dir: f.dir, RuntimeDir: a.sys.RuntimeDir, Tenants: f.tenants,
		WorkerLostAfter: f.lostAfter, Log: log,
		Worker: fabric.Worker{Driver: f.driver, Slots: f.slots, Labels: labels},
	})
	if err != nil {
		return interrupted(ctx, err)
	}
	_, err = fmt.Fprintf(a.sys.Stdout, `weft is up at %s (process %d). In another terminal:
  weft run -- uname -a
  weft worker ls
Other weft commands of yours find its token in %s. Ctrl-C stops it.
`, stack.URL(), os.Getpid(), a.sys.RuntimeDir)
	if err == nil {
		select {
		case <-ctx.Done():
		case <-stack.Done():
			err = stack.Err()
		}
	}
	if stopErr := stack.Stop(); err == nil && stopErr != nil {
		err = wire.Errorf(wire.CodeInternal, "weft did not stop cleanly: %v", stopErr)
	}
	return err
}
