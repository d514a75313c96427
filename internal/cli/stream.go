package cli

import (
	"context"
	"io"
	"sync"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// notices writes what the client tells while it waits. tell never blocks: a
// terminal that is stopped must not stop the client.
type notices struct {
	w     io.Writer
	lines chan string
	stop  chan struct{}
	wg    sync.WaitGroup
}

func startNotices(w io.Writer) *notices {
	n := &notices{w: w, lines: make(chan string, 64), stop: make(chan struct{})}
	n.wg.Go(func() {
		for {
			select {
			case l := <-n.lines:
				say(n.w, l)
			case <-n.stop:
				for len(n.lines) > 0 {
					say(n.w, <-n.lines)
				}
				return
			}
		}
	})
	return n
}

func (n *notices) tell(c client.Notice) {
	select {
	case n.lines <- c.Text:
	default: // nobody has read the last 64
	}
}

// close returns when all lines are written.
func (n *notices) close() {
	close(n.stop)
	n.wg.Wait()
}

// stream opens cmd on the lease, serves its streams until it has ended, and
// returns what its end means for the exit status. dead tells of the end of a
// stack of ours and may be nil.
func (a *app) stream(t *attendant, lease *client.Lease, cmd client.Command, f commandFlags, dead <-chan struct{}) error {
	ch, err := lease.Open(t.setup, cmd, a.streams(t, f, nil)...)
	if err != nil {
		return interrupted(t.setup, err)
	}
	return a.serve(t, ch, cmd.Argv[0], f.quiet, dead)
}

// streams are the options that connect a channel with ours. Nothing is written
// before ready is closed, unless that is nil.
func (a *app) streams(t *attendant, f commandFlags, ready <-chan struct{}) []client.Option {
	first := t.begin
	if ready != nil {
		first = func() { t.begin(); <-ready }
	}
	opts := []client.Option{
		client.WithStdout(&outlet{w: a.sys.Stdout, first: first, pipe: t.pipe}),
		client.WithStderr(&outlet{w: a.sys.Stderr, first: first, pipe: t.pipe}),
	}
	if !f.noStdin {
		opts = append(opts, client.WithStdin(a.sys.Stdin))
	}
	return opts
}

// serve waits for the end of a channel, as stream does.
func (a *app) serve(t *attendant, ch *client.Channel, name string, quiet bool, dead <-chan struct{}) error {
	t.running(ch)
	select {
	case <-ch.Done():
	case <-t.left:
		return t.signalled()
	case <-dead:
		return &exit{code: wire.ExitLost, err: wire.Errorf(wire.CodeUnavailable, "the stack of this weft has failed; --log-level warn tells more")}
	}
	o, err := ch.WaitContext(context.Background())
	if o.Drain == wire.DrainHeld && !quiet {
		say(a.sys.Stderr, "a background process of the command held its output open and was ended; output of it may be cut off")
	}
	if sig := t.signalled(); sig != nil {
		return sig
	}
	return verdict(name, o, err)
}

// verdict is the error, or nil, that carries the exit status and what to say.
func verdict(name string, o client.Outcome, err error) error {
	code := o.ExitCode()
	if err != nil {
		if code == 0 {
			code = wire.ExitRefused
		}
		return &exit{code: code, err: err}
	}
	if text := explain(name, o); text != "" {
		return &exit{code: code, err: plain(text)}
	}
	if code == 0 {
		return nil
	}
	return &exit{code: code}
}

// plain is an error that is a sentence for a person already.
type plain string

func (p plain) Error() string { return string(p) }
