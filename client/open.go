package client

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Open starts cmd and returns the channel to it. ctx bounds the call alone: a
// channel lives until its command ends. When the call fails after the request
// has left, the command is killed if it was started after all.
//
// A command that cannot be started is no error of Open: its outcome is
// start_failed. Errors: those of the gate, INVALID_ARGUMENT, UNAVAILABLE,
// DEADLINE_EXCEEDED.
func (l *Lease) Open(ctx context.Context, cmd Command, opts ...Option) (*Channel, error) {
	o, err := cmd.options(opts)
	if err != nil {
		return nil, err
	}
	if o.stdin != nil {
		cmd.Stdin = StdinPipe
	}
	exec, err := cmd.exec(wire.ModeDuplex)
	if err != nil {
		return nil, err
	}
	return l.open(ctx, exec, o)
}

// OpenOrExecute opens a channel, or runs the command to its end with Execute
// when the gate says that this lease has no duplex channels. One of the first
// two results is not nil unless there is an error. A command is never run a
// second time: no other refusal, and no failure later, falls back. Input comes
// from WithStdin alone, since there may be no channel to write to.
func (l *Lease) OpenOrExecute(ctx context.Context, cmd Command, opts ...Option) (*Channel, *Result, error) {
	ch, err := l.Open(ctx, cmd, opts...)
	if err == nil {
		return ch, nil, nil
	}
	if !wire.CodeOf(err).FallsBackToExecute() {
		return nil, nil, err
	}
	res, err := l.Execute(ctx, cmd, opts...)
	return nil, res, err
}

// open runs exec on a channel of its own. The channel's streams are served as o says.
func (l *Lease) open(ctx context.Context, exec wire.Exec, o options) (*Channel, error) {
	body := wire.Encode(exec)
	if len(body) > wire.MaxExecBody {
		return nil, wire.Errorf(CodePayloadTooLarge, "the command with its arguments and environment is %d bytes; at most %d are taken", len(body), wire.MaxExecBody)
	}
	if ctx.Err() != nil {
		return nil, typed(ctx, "opening the channel", context.Cause(ctx))
	}
	route, err := l.routeName(ctx)
	if err != nil {
		return nil, err
	}
	at := place{id: uuid.New(), lease: l.id, epoch: l.Info().Epoch, routeName: route}
	c, err := l.c.newChannel(ctx, at, exec.Mode, o)
	if err != nil {
		return nil, err
	}
	c.stdin = exec.Stdin == StdinPipe && len(exec.StdinData) == 0
	reply, err := c.request(ctx, body)
	if err == nil {
		err = c.bind(reply)
	}
	if err != nil {
		c.end.Fail(errClosed())
		c.pumps.Wait()
		c.free()
		return nil, err
	}
	return c, nil
}

// routeName is the worker's token in the lease's subjects. A lease that was
// fetched before its sandbox was made is fetched once more.
func (l *Lease) routeName(ctx context.Context) (string, error) {
	if r := l.Info().Route; r != "" {
		return r, nil
	}
	if err := l.refresh(ctx); err != nil {
		return "", err
	}
	info := l.Info()
	if info.Route == "" {
		return "", wire.Errorf(CodeUnavailable, "the lease is %s and has no sandbox; ask again when it is active", info.State)
	}
	return info.Route, nil
}

// openPort subscribes to what comes down on a channel.
func (c *Client) openPort(ctx context.Context, at place) (port, error) {
	p, err := c.bus.Open(subjects.Channel{
		Tenant: c.opts.Tenant, Route: at.routeName, Lease: at.lease, Channel: at.id.String(),
	})
	return p, typed(ctx, "opening the channel", err)
}

// newChannel makes the local half: subscribed, and ready for frames that come
// before the answer.
func (c *Client) newChannel(ctx context.Context, at place, mode wire.Mode, o options) (*Channel, error) {
	p, err := c.openPort(ctx, at)
	if err != nil {
		return nil, err
	}
	return c.onPort(p, at, mode, o)
}

// onPort makes the local half of a channel on a port, which it owns.
func (c *Client) onPort(p port, at place, mode wire.Mode, o options) (*Channel, error) {
	ch := &Channel{
		place: at, c: c, mode: mode, opts: o, port: p,
		recorded: make(chan struct{}), done: make(chan struct{}),
	}
	ch.end = duplex.New(duplex.Config{Side: duplex.Client, Channel: at.id, Epoch: at.epoch.N, Link: p})
	p.Bind(ch.end)
	if !c.hold(ch) {
		ch.end.Close()
		p.Close()
		return nil, errClosed()
	}
	return ch, nil
}

// hold makes the client close what the channel holds; false after Close.
func (c *Client) hold(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.channels[ch] = struct{}{}
	return true
}

// request asks the gate. The channel's id is the idempotency key, so a lost
// answer is asked for again.
func (c *Channel) request(ctx context.Context, body []byte) (wire.OpenReply, error) {
	limit, frames := c.end.Credit()
	req := wire.Encode(wire.OpenRequest{
		Lease: c.lease, Epoch: c.epoch, Channel: c.id, Body: body,
		Credit: wire.DownCredit{Stdout: limit, Stderr: limit, FrameLimit: frames},
	})
	verb := subjects.APIOpen
	if c.mode == wire.ModeExecute {
		verb = subjects.APIExecute
	}
	ctx, cancel := context.WithTimeout(ctx, c.c.opts.RequestTimeout)
	defer cancel()
	var reply wire.OpenReply
	err := c.c.exchange(ctx, subjects.API(c.c.opts.Tenant, verb), req, attemptTimeout, &reply)
	started := mayHaveStarted(err)
	if err == nil {
		err = checkReply(c.id, reply)
		started = err != nil
	}
	if started {
		c.killLater()
	}
	return reply, err
}

func checkReply(id uuid.UUID, r wire.OpenReply) error {
	if r.Channel != id || r.Attach == 0 || len(r.KeyUp) != wire.KeySize || len(r.KeyDown) != wire.KeySize {
		return wire.Errorf(CodeOpenFailed, "the coordinator's answer does not fit the request; the command was not opened")
	}
	return nil
}

// mayHaveStarted reports whether an open that failed with err may have started
// the command: no answer came, or one that cannot be used.
func mayHaveStarted(err error) bool {
	if errors.Is(err, natsbus.ErrNoResponders) {
		return false
	}
	switch wire.CodeOf(err) {
	case CodeDeadlineExceeded, CodeUnavailable, CodeInternal:
		return true
	}
	return errors.Is(err, context.Canceled)
}

// Times of a kill that nobody waits for.
const (
	killTimeout = 2 * time.Second
	killTries   = 5
)

// killLater asks for the end of a command that nobody will see. The request may
// overtake the open, so NOT_FOUND is asked again. Close waits for the first try.
func (c *Channel) killLater() {
	c.c.crew.start(func(ctx context.Context) {
		pause := 100 * time.Millisecond
		for range killTries {
			err := c.kill(context.WithoutCancel(ctx), killTimeout)
			if code := wire.CodeOf(err); code != CodeNotFound && code != CodeUnavailable && code != CodeDeadlineExceeded {
				return
			}
			if !c.c.pause(ctx, pause) {
				return
			}
			pause *= 3
		}
	})
}

func (c *Channel) kill(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := c.c.bus.Request(ctx, subjects.API(c.c.opts.Tenant, subjects.APIKill),
		wire.Encode(wire.ChannelRequest{Lease: c.lease, Channel: c.id}))
	return typed(ctx, "the kill", err)
}

// bind gives the channel what the answer brought and starts what serves it.
func (c *Channel) bind(r wire.OpenReply) error {
	if r.Outcome != nil && r.Outcome.Kind == StartFailed {
		c.setRecord(wire.Channel{Outcome: r.Outcome, Totals: &wire.Totals{}}, false)
	}
	c.holding = holding{attach: r.Attach, keyUp: wire.Key(r.KeyUp), keyDown: wire.Key(r.KeyDown)}
	c.end.Start(duplex.Grant{
		Attach: r.Attach, KeyUp: c.holding.keyUp, KeyDown: c.holding.keyDown,
		Credit: [4]uint64{wire.Stdin: r.Credit.Stdin}, Frames: r.Credit.FrameLimit,
	})
	c.startPumps()
	if !c.c.watch(c) {
		c.killLater()
		return errClosed()
	}
	return nil
}

// watch starts the goroutine that sees a channel's end, and its keepalive.
func (c *Client) watch(ch *Channel) bool {
	c.join(ch)
	if c.crew.start(ch.watch) == nil {
		c.leave(ch)
		return false
	}
	return true
}

// inMemory returns what is left in r if r holds it in memory.
func inMemory(r io.Reader, max int) ([]byte, bool) {
	sized, ok := r.(interface{ Len() int })
	if !ok || sized.Len() > max {
		return nil, false
	}
	b, err := io.ReadAll(r)
	return b, err == nil
}
