package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// execFlags are the flags of weft exec.
type execFlags struct {
	conn    connFlags
	command commandFlags
	output  output
	keep    int
}

func (a *app) exec() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec LEASE -- COMMAND [ARG...]",
		Short: "Run a command once on a lease you have, without a duplex channel",
		Long: `Run a command once on a lease you have. It needs no duplex channel, so every
lease can do it. Standard input is passed on unless it is a terminal.

With -o json the output is kept (head and tail of each stream, see --keep) and
printed with the outcome as one object when the command has ended; the exit
status is the same as without.`,
		Example: `  weft exec $LEASE -- make test
  weft exec -o json $LEASE -- cat /etc/os-release`,
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, argv, err := leaseAndCommand(cmd, args)
			if err != nil {
				return err
			}
			return a.runExec(cmd.Context(), f, lease, argv)
		},
	}
	fs := cmd.Flags()
	f.conn.bind(fs)
	f.command.bind(fs)
	f.output.bind(fs)
	fs.IntVar(&f.keep, "keep", wire.DefaultOutputKept, "with -o json: bytes of each stream to keep")
	return cmd
}

func (a *app) runExec(ctx context.Context, f execFlags, id string, argv []string) error {
	cmd, err := a.command(f.command, argv)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A write to a pipe without a reader is to fail with EPIPE, not to end weft
	// before its command is.
	defer a.sys.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)()
	var opts []client.Option
	if !f.command.noStdin && !isTerminal(a.sys.Stdin) {
		opts = append(opts, client.WithStdin(a.sys.Stdin))
	}
	if f.output == asJSON {
		opts = append(opts, client.WithOutputKept(f.keep))
	} else {
		opts = append(opts, client.WithStdout(&onlyRead{a.sys.Stdout, cancel}), client.WithStderr(&onlyRead{a.sys.Stderr, cancel}), client.WithOutputKept(0))
	}
	return a.withClient(ctx, f.conn, func(ctx context.Context, c *client.Client) error {
		lease, err := c.GetLease(ctx, id)
		if err != nil {
			return err
		}
		res, err := lease.Execute(ctx, cmd, opts...)
		if e, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
			return &exit{code: e.status()}
		}
		if res == nil {
			return err
		}
		if f.output == asJSON {
			if jsonErr := writeJSON(a.sys.Stdout, resultOf(id, res, err)); jsonErr != nil {
				return jsonErr
			}
		}
		return verdict(argv[0], res.Outcome, err)
	})
}

// onlyRead is an output that is worth running for only while somebody reads it:
// when the reader has gone the command is ended, as SIGPIPE would end a local one.
type onlyRead struct {
	w      io.Writer
	cancel context.CancelCauseFunc
}

func (o *onlyRead) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		o.cancel(&signalError{syscall.SIGPIPE})
	}
	return n, err
}

// execResult is what weft exec -o json prints.
type execResult struct {
	Lease    string         `json:"lease"`
	Outcome  client.Outcome `json:"outcome"`
	ExitCode int            `json:"exitCode"`
	Stdout   kept           `json:"stdout"`
	Stderr   kept           `json:"stderr"`
	Error    string         `json:"error,omitempty"` // what went wrong beside the command
}

// kept is one stream: all of it in head if nothing was left out.
type kept struct {
	Encoding string `json:"encoding"` // utf-8, or base64 if the bytes are no such text
	Head     string `json:"head"`
	Tail     string `json:"tail,omitempty"`
	Omitted  int64  `json:"omitted"` // bytes between head and tail
}

func resultOf(lease string, res *client.Result, err error) execResult {
	r := execResult{
		Lease: lease, Outcome: res.Outcome, ExitCode: res.Outcome.ExitCode(),
		Stdout: keptOf(res.Stdout), Stderr: keptOf(res.Stderr),
	}
	if err != nil {
		r.Error = sentence(err)
	}
	return r
}

func keptOf(o client.Output) kept {
	head, tail := o.Head, o.Tail
	if o.Omitted == 0 {
		head, tail = o.Bytes(), nil
	}
	if utf8.Valid(head) && utf8.Valid(tail) {
		return kept{Encoding: "utf-8", Head: string(head), Tail: string(tail), Omitted: o.Omitted}
	}
	enc := base64.StdEncoding.EncodeToString
	return kept{Encoding: "base64", Head: enc(head), Tail: enc(tail), Omitted: o.Omitted}
}

func isTerminal(r any) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
