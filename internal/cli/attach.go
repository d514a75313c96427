package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// attachFlags are the flags of weft attach.
type attachFlags struct {
	conn       connFlags
	noStdin    bool
	wholeStdin bool
	quiet      bool
	output     output
	observe    bool
	from       string
	fromSaved  string
	save       string
}

func (a *app) attach() *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "attach CHANNEL",
		Short: "Take over the streams of a channel that is open, or read along",
		Long: `Take over the streams of a channel that is open. Whoever held it is fenced off.
The streams go on where they stand, every byte once; --from says how many bytes
you have of the outputs, if that is more than what was acknowledged. The exit
status is the command's.

INT is passed on to the command; the second INT detaches, and so do TERM and HUP:
the command goes on.

With --observe weft only reads along: the command and its holder do not notice.
What is missed is told on standard error.

With -o json what weft itself has to say is on standard error, one JSON object a
line: where the streams go on, and how the command ended.`,
		Example: `  weft attach $CHANNEL
  weft attach --observe $CHANNEL
  weft attach --from $(stat -c %s out) $CHANNEL >>out
  weft attach --from-saved state.json $CHANNEL`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkChannel(args[0]); err != nil {
				return err
			}
			if f.observe {
				return a.runObserve(cmd.Context(), f, args[0])
			}
			return a.runAttach(cmd.Context(), f, args[0])
		},
	}
	fs := cmd.Flags()
	f.conn.bind(fs)
	f.output.bind(fs)
	fs.BoolVarP(&f.noStdin, "no-stdin", "n", false, "leave the command's input and ours alone")
	fs.BoolVar(&f.wholeStdin, "whole-stdin", false, "our input begins at the command's first byte: skip what it has taken already")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell about the connection, the worker and the position")
	fs.BoolVar(&f.observe, "observe", false, "read along without taking the channel over")
	fs.StringVar(&f.from, "from", "", "STDOUT or STDOUT,STDERR: bytes that you have of each")
	fs.StringVar(&f.fromSaved, "from-saved", "", "file that --save has written: attach without a coordinator")
	fs.StringVar(&f.save, "save", "", "file to write what --from-saved needs; it is a secret")
	cmd.MarkFlagsMutuallyExclusive("observe", "from")
	cmd.MarkFlagsMutuallyExclusive("observe", "from-saved")
	cmd.MarkFlagsMutuallyExclusive("observe", "save")
	cmd.MarkFlagsMutuallyExclusive("observe", "whole-stdin")
	cmd.MarkFlagsMutuallyExclusive("no-stdin", "whole-stdin")
	return cmd
}

func checkChannel(id string) error {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return refused("the channel is not a UUID in its 36-character lower-case form; weft channel ls lists them")
	}
	return wire.CheckChannelID(u)
}

// position reads --from.
func (f attachFlags) position() (*client.Position, error) {
	if f.from == "" {
		return nil, nil
	}
	out, errs, both := strings.Cut(f.from, ",")
	if !both {
		errs = "0"
	}
	var p client.Position
	var err1, err2 error
	p.Stdout, err1 = strconv.ParseInt(out, 10, 64)
	p.Stderr, err2 = strconv.ParseInt(errs, 10, 64)
	if err1 != nil || err2 != nil || min(p.Stdout, p.Stderr) < 0 {
		return nil, refused("--from is neither STDOUT nor STDOUT,STDERR in bytes")
	}
	return &p, nil
}

func (a *app) runAttach(ctx context.Context, f attachFlags, id string) error {
	from, err := f.position()
	if err != nil {
		return err
	}
	var saved client.Saved
	if f.fromSaved != "" {
		if saved, err = readSaved(f.fromSaved); err != nil {
			return err
		}
		if saved.Channel != id {
			return refused("--from-saved: %s is of channel %s", f.fromSaved, saved.Channel)
		}
	}
	cf := commandFlags{noStdin: f.noStdin, quiet: f.quiet}
	return a.attended(ctx, f.conn, cf, func(at *attendant, c *client.Client) error {
		at.detaches()
		told := make(chan struct{}) // what we say of the position comes before the output
		ready := sync.OnceFunc(func() { close(told) })
		defer ready()
		opts := a.streams(at, commandFlags{noStdin: f.noStdin || f.wholeStdin}, told)
		if f.wholeStdin {
			opts = append(opts, client.WithWholeStdin(a.sys.Stdin))
		}
		o := client.AttachOptions{From: from}
		var ch *client.Channel
		var err error
		if f.fromSaved != "" {
			ch, err = c.Resume(at.setup, saved, o, opts...)
		} else {
			ch, err = c.Attach(at.setup, "", id, o, opts...)
		}
		if err != nil {
			return interrupted(at.setup, err)
		}
		if err := a.save(f.save, ch); err != nil {
			ready()
			return errors.Join(err, ch.Detach(at.setup))
		}
		a.tellAttached(f, ch, from)
		ready()
		err = a.serve(at, ch, "the command", f.quiet, nil)
		return a.tellEnd(f, ch, err)
	})
}

// attached is what -o json says of a new attach.
type attached struct {
	Channel string          `json:"channel"`
	Lease   string          `json:"lease"`
	Attach  uint32          `json:"attach"` // 0: the channel has ended, and its log is read
	At      client.Position `json:"at"`     // where the streams go on
}

func (a *app) tellAttached(f attachFlags, ch *client.Channel, from *client.Position) {
	s, at := ch.Save(), ch.AttachedAt()
	if f.output == asJSON {
		jsonLine(a.sys.Stderr, attached{s.Channel, s.Lease, s.Attach, at})
		return
	}
	if from == nil {
		from = &client.Position{}
	}
	if !f.quiet && (at.Stdout != from.Stdout || at.Stderr != from.Stderr) {
		say(a.sys.Stderr, fmt.Sprintf("the outputs go on at byte %d of stdout and %d of stderr; what is before was taken by an earlier client", at.Stdout, at.Stderr))
	}
}

// attachEnd is what -o json says at the end.
type attachEnd struct {
	Outcome  client.Outcome  `json:"outcome"`
	Position client.Position `json:"position"` // that our outputs have reached
	Error    string          `json:"error,omitempty"`
}

// tellEnd says how it ended, as JSON if that is asked for, and keeps err's status.
func (a *app) tellEnd(f attachFlags, ch *client.Channel, err error) error {
	if f.output != asJSON {
		return err
	}
	select {
	case <-ch.Done():
	default:
		return err // left without waiting
	}
	o, werr := ch.Wait()
	e := attachEnd{Outcome: o, Position: ch.Position()}
	if werr != nil {
		e.Error = sentence(werr)
	}
	jsonLine(a.sys.Stderr, e)
	return quietly(err)
}

// quietly keeps the exit status of err and says nothing of it.
func quietly(err error) error {
	if e, ok := err.(*exit); ok {
		return &exit{code: e.code}
	}
	return err
}

// jsonLine writes v on one line; a standard error that is gone is nobody's loss.
func jsonLine(w io.Writer, v any) {
	b, err := json.Marshal(v) // escapes what a terminal would obey
	if err == nil {
		_, _ = w.Write(append(b, '\n'))
	}
}

// runObserve reads along until the command or a signal ends it.
func (a *app) runObserve(ctx context.Context, f attachFlags, id string) error {
	return a.withClient(ctx, f.conn, func(ctx context.Context, c *client.Client) error {
		o, err := c.Observe(ctx, "", id)
		if err != nil {
			return err
		}
		defer o.Close()
		for {
			e, err := o.Next(ctx)
			if err != nil {
				break // the end, which Wait tells
			}
			if err := a.observed(f, e); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		out, err := o.Wait(ctx)
		if f.output == asJSON {
			end := attachEnd{Outcome: out}
			if err != nil {
				end.Error = sentence(err)
			}
			jsonLine(a.sys.Stderr, end)
			return quietly(verdict("the command", out, err))
		}
		return verdict("the command", out, err)
	})
}

// missed is what -o json says of bytes that an observer has not seen.
type missed struct {
	Stream string `json:"stream"`
	Missed int64  `json:"missed"`
}

func (a *app) observed(f attachFlags, e client.Observation) error {
	w, name := a.sys.Stdout, "stdout"
	if e.Stderr {
		w, name = a.sys.Stderr, "stderr"
	}
	switch {
	case e.Missed == 0:
	case f.output == asJSON:
		jsonLine(a.sys.Stderr, missed{name, e.Missed})
	case !f.quiet:
		say(a.sys.Stderr, fmt.Sprintf("%d bytes of %s were missed here", e.Missed, name))
	}
	_, err := w.Write(e.Data)
	return err
}
