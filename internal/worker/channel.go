package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// maxGrace bounds the time between TERM and KILL that a client may ask for.
const maxGrace = 24 * time.Hour

// channel is one command with its link to a client.
type channel struct {
	// Set once.
	order    wire.OpenOrder
	exec     *wire.Exec
	held     *held
	port     *natsbus.Port
	end      *duplex.End
	stdin    *stdin
	audience *audience
	fate     *fate
	log      zerolog.Logger

	opened chan struct{} // closed when err is set, or the command has started or has an outcome
	err    error         // why the open was refused; set before opened is closed
	dead   chan struct{} // closed when the process tree is dead and its output read

	finish
}

// finish is what the table knows of a channel's end, and guards.
type finish struct {
	outcome *wire.Outcome // nil until it is decided
	at      time.Time     // when it was
	leave   chan struct{} // closed to forget the channel although its reader has not taken everything
	left    bool          // leave is closed
}

// grace is the time between TERM and KILL that the open asked for.
func (c *channel) grace() time.Duration {
	return graceOf(cmp.Or(c.exec.GraceMS, wire.DefaultGrace.Milliseconds()))
}

func graceOf(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxGrace.Milliseconds())) * time.Millisecond
}

// request obeys a control request. It is called with the end locked.
func (c *channel) request(r wire.Request) wire.Answer {
	o, gone := c.fate.outcome()
	switch {
	case r.Verb == wire.VerbDetach:
		c.audience.leave(time.Now())
		return wire.Answer{}
	case gone:
		return wire.Answer{Outcome: &o}
	case r.Verb == wire.VerbSignal:
		return c.fate.signal(r.Signal)
	case r.Verb == wire.VerbInterrupt:
		return c.fate.signal("INT")
	case r.Verb == wire.VerbStop:
		grace := c.grace()
		if r.GraceMS > 0 {
			grace = graceOf(r.GraceMS)
		}
		c.fate.ask(wire.Outcome{Kind: wire.EndedByRequest}, grace)
		return wire.Answer{}
	case r.Verb == wire.VerbResize:
		return refuseRequest("the command has no terminal to resize")
	}
	return refuseRequest("there is no such request")
}

func refuseRequest(why string) wire.Answer {
	return wire.Answer{Error: wire.Errorf(wire.CodeInvalidArgument, "%s", why)}
}

// failed ends the channel when its end has failed by itself.
func (c *channel) failed(e *wire.Error) {
	o := wire.Outcome{Kind: wire.OutcomeKind(e.Details["outcome"]), Reason: e.Details["limit"]}
	o.Bytes, _ = strconv.ParseInt(e.Details["bytes"], 10, 64) // 0 where it does not apply
	if o.Kind == "" {
		o.Kind = wire.Unknown
	}
	c.log.Warn().Err(e).Msg("channel failed")
	c.fate.ask(o, c.grace())
}

func (c *channel) grant() duplex.Grant {
	g := duplex.Grant{
		Attach: 1, KeyUp: wire.KeyUp(c.order.Secret, 1), KeyDown: wire.KeyDown(c.order.Secret),
		Frames: c.order.Credit.FrameLimit,
	}
	g.Credit[wire.Stdout], g.Credit[wire.Stderr] = c.order.Credit.Stdout, c.order.Credit.Stderr
	return g
}

// life is a channel from its order to its being forgotten.
func (w *Worker) life(ctx context.Context, c *channel) {
	c.port.Bind(c.end)
	c.end.Start(c.grant())
	if c.exec.Stdin != wire.StdinPipe || c.stdin.only {
		c.end.Discard(wire.Stdin) // whatever comes has no reader
	}
	p, err := c.start(ctx)
	if err != nil {
		if o, asked := c.notStarted(err); asked {
			w.conclude(ctx, c, o, nil)
			return
		}
		c.err = err
		close(c.dead)
		w.forget(c)
		close(c.opened)
		return
	}
	close(c.opened)
	out := newOutput(c, sandbox.NewDrain(w.cfg.Limits.Drain), w.buffers)
	w.conclude(ctx, c, w.run(ctx, c, p, out), out)
	out.pumps.Wait() // the end is closed: nothing waits for credit any more
}

// start starts the command unless the channel is asked to end before it has.
func (c *channel) start(ctx context.Context) (*sandbox.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		select {
		case <-c.fate.asked:
			cancel()
		case <-ctx.Done():
		}
	})
	p, err := c.held.sandbox().Start(ctx, sandbox.Command{
		Argv: c.exec.Argv, Cwd: c.exec.Cwd, Env: c.exec.Env, Stdin: c.exec.Stdin,
	})
	if err == nil {
		c.fate.started(p)
		c.log.Debug().Int("pid", p.Pid()).Msg("command started")
	}
	return p, err
}

// notStarted is the outcome of a command that could not be started; false if
// the open is refused instead.
func (c *channel) notStarted(err error) (wire.Outcome, bool) {
	if o, _ := c.fate.outcome(); o.Kind != "" {
		return o, true
	}
	if e, ok := errors.AsType[*sandbox.StartError](err); ok {
		c.log.Info().Err(err).Msg("command not started")
		return wire.StartFailedFor(e.Reason), true
	}
	return wire.Outcome{}, false
}

// run carries a started command to the death of its tree and returns how it
// ended. All its output has been read then, though perhaps not sent.
func (w *Worker) run(ctx context.Context, c *channel, p *sandbox.Process, out *output) wire.Outcome {
	flow, stopFlow := context.WithCancel(ctx)
	defer stopFlow()
	out.start(flow, ctx, p, w.spiller())
	c.stdin.attach(p.Stdin())
	c.await(ctx, p)
	o, gone := c.fate.outcome()
	if gone {
		c.audience.exit()
	} else {
		if err := c.fate.stop(ctx); err != nil {
			c.log.Error().Err(err).Stringer("outcome", o).Msg("a command's tree is not dead")
		}
		stopFlow()
	}
	held, err := c.reap(ctx, p, out, stopFlow)
	if err != nil {
		c.log.Error().Err(err).Msg("a command's end is not complete")
		_ = p.Close(ctx) // closes the pipes in any case, so that nobody waits for them
	}
	out.finalize()
	stopFlow()
	<-out.read
	c.stdin.close()
	o = c.fate.finish(held)
	if err := p.Close(ctx); err != nil {
		c.log.Error().Err(err).Msg("a command left something behind")
	}
	return o
}

// await returns when the process is gone or the channel was asked to end, be it
// by its own deadline.
func (c *channel) await(ctx context.Context, p *sandbox.Process) {
	deadline, lifetime := timerOf(c.exec.TimeoutMS), timerOf(c.exec.LifetimeMS)
	defer deadline.Stop()
	defer lifetime.Stop()
	select {
	case <-p.Done():
	case <-c.fate.asked:
	case <-deadline.C:
		c.fate.ask(wire.Outcome{Kind: wire.TimedOut}, c.grace())
	case <-lifetime.C:
		c.fate.ask(wire.Limit("lifetime"), c.grace())
	case <-ctx.Done():
		c.fate.ask(wire.Outcome{Kind: wire.WorkerDrained}, 0)
	}
}

// timerOf never fires for 0.
func timerOf(ms int64) *time.Timer {
	if ms == 0 {
		t := time.NewTimer(0)
		t.Stop()
		return t
	}
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	return time.NewTimer(time.Duration(min(ms, longest)) * time.Millisecond)
}

// reap gives a slow reader and descendants that hold the pipes of a finished
// command their time. It is cut short when the channel is asked to end.
func (c *channel) reap(ctx context.Context, p *sandbox.Process, out *output, stopFlow func()) (held bool, err error) {
	var watch sync.WaitGroup
	defer watch.Wait()
	done := make(chan struct{})
	defer close(done)
	watch.Go(func() {
		select {
		case <-c.fate.asked:
			// Dead first: only then is what is left in the pipes bounded.
			if err := p.Kill(ctx); err == nil {
				stopFlow()
			}
		case <-done:
		}
	})
	return p.End(ctx, out.drain, out.read)
}

// conclude puts a channel's outcome on record, delivers what its reader has yet
// to take, and forgets the channel. out is nil if nothing was started.
func (w *Worker) conclude(ctx context.Context, c *channel, o wire.Outcome, out *output) {
	totals := wire.Totals{Stdin: c.stdin.taken.Load()}
	delivered := make(chan struct{})
	if out != nil {
		totals.Stdout, totals.Stderr = out.stdout.total.Load(), out.stderr.total.Load()
		delivered = out.delivered
	} else {
		close(delivered)
	}
	w.table.conclude(c, o)
	close(c.dead)
	c.log.Info().Stringer("outcome", o).Uint64("stdout", totals.Stdout).Uint64("stderr", totals.Stderr).Msg("command ended")
	select {
	case <-delivered:
		c.end.Finish(o) // at once, before the coordinators are told
	default:
	}
	if out == nil {
		select {
		case <-c.opened:
		default:
			close(c.opened)
		}
	}
	var report sync.WaitGroup
	report.Go(func() { w.report(ctx, c, o, totals) })
	forget, cancel := context.WithTimeout(ctx, w.cfg.Limits.Forget)
	defer cancel()
	select {
	case <-delivered:
		c.end.Finish(o)
		select {
		case <-c.end.Taken():
		case <-c.leave:
		case <-forget.Done():
		}
	case <-c.leave:
	case <-forget.Done():
	}
	w.forget(c)
	report.Wait()
}

// forget ends what is left of a channel; its outcome, if it has one, is remembered.
func (w *Worker) forget(c *channel) {
	c.end.Close()
	c.port.Close()
	w.table.forget(c)
}

// same reports whether a repeated open asks for this very channel.
func (c *channel) same(o wire.OpenOrder) bool {
	return c.order.Tenant == o.Tenant && c.order.Lease == o.Lease && bytes.Equal(c.order.BodySHA256, o.BodySHA256)
}
