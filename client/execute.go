package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// maxStdinBody is how much standard input an execution carries in its request;
// more is streamed to it.
const maxStdinBody = 256 << 10

// cancelWait is how long a cancelled Execute still waits for the outcome.
const cancelWait = 500 * time.Millisecond

// Result is what a command left that was run to its end.
type Result struct {
	Outcome        Outcome
	Stdout, Stderr Output
}

// Success reports exited(0), the only outcome that is one.
func (r *Result) Success() bool { return r.Outcome.Success() }

// Truncated reports whether output was left out of the result.
func (r *Result) Truncated() bool { return r.Stdout.Omitted+r.Stderr.Omitted > 0 }

// Output is what was kept of one stream: all of it in Head, or its beginning
// and its end.
type Output struct {
	Head, Tail []byte
	Omitted    int64 // bytes left out between Head and Tail
}

// Bytes is the stream; where bytes were left out a line says how many.
func (o Output) Bytes() []byte {
	if o.Omitted == 0 {
		return append(o.Head[:len(o.Head):len(o.Head)], o.Tail...)
	}
	b := fmt.Appendf(o.Head[:len(o.Head):len(o.Head)], "\n[%d bytes left out]\n", o.Omitted)
	return append(b, o.Tail...)
}

func (o Output) String() string { return string(o.Bytes()) }

// Execute runs cmd to its end and keeps the beginning and the end of what it
// printed. It waits as long as the command runs; there is no limit but the
// command's own Timeout and ctx. When ctx ends the command is killed, and the
// call returns within a second with what has come.
//
// Input comes from WithStdin alone; without it the command reads /dev/null.
// The result is nil only if the command was not opened. As with Wait, an error
// beside a result says that something other than the command went wrong.
func (l *Lease) Execute(ctx context.Context, cmd Command, opts ...Option) (*Result, error) {
	o, err := cmd.options(opts)
	if err != nil {
		return nil, err
	}
	if o.merged != nil {
		return nil, wire.Errorf(CodeInvalidArgument, "WithMerged is for Open")
	}
	input, o := executeInput(o)
	if cmd.Stdin != wire.StdinPTY { // which exec refuses
		cmd.Stdin = StdinNone
	}
	if o.stdin != nil || len(input) > 0 {
		cmd.Stdin = StdinPipe
	}
	exec, err := cmd.exec(wire.ModeExecute)
	if err != nil {
		return nil, err
	}
	exec.StdinData = input
	out, errs := newSink(o.keep, o.stdout), newSink(o.keep, o.stderr)
	o.stdout, o.stderr = out, errs
	ch, err := l.open(ctx, exec, o)
	if err != nil {
		return nil, err
	}
	outcome, err := ch.runToEnd(ctx)
	res := &Result{Outcome: outcome}
	var live, liveErr error
	res.Stdout, live = out.output()
	res.Stderr, liveErr = errs.output()
	return res, join(err, live, liveErr)
}

// executeInput is the input that goes with the request; what does not fit or is
// not in memory stays in the options, to be streamed.
func executeInput(o options) ([]byte, options) {
	if o.stdin == nil {
		return nil, o
	}
	input, ok := inMemory(o.stdin, maxStdinBody)
	if ok {
		o.stdin = nil
	}
	return input, o
}

// runToEnd waits for the outcome, or ends the command when ctx ends.
func (c *Channel) runToEnd(ctx context.Context) (Outcome, error) {
	select {
	case <-c.done:
		return c.Wait()
	case <-ctx.Done():
	}
	c.killLater()
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer cancel()
	outcome, _ := c.WaitContext(wait)
	c.end.Fail(endError(CodeChannelEnded, LayerTransport, Outcome{}, "the execution was cancelled before the command's end had arrived"))
	return outcome, typed(ctx, "the execution", context.Cause(ctx))
}

// sink keeps the head and the tail of a stream and copies it to a live writer
// until that fails. Its own Write never does.
type sink struct {
	mu         sync.Mutex
	head, tail []byte // tail is a ring once it is full
	headCap    int
	tailCap    int
	next       int // place in the full ring where the next byte goes
	total      int64
	live       io.Writer
	err        error // first one of live
}

func newSink(keep int, live io.Writer) *sink {
	return &sink{headCap: keep / 2, tailCap: keep - keep/2, live: live}
}

// Write is called by one pump.
func (s *sink) Write(p []byte) (int, error) {
	live := s.collect(p)
	if live == nil {
		return len(p), nil
	}
	err := guarded(func() error {
		_, err := live.Write(p)
		return err
	})
	if err != nil {
		s.failed(err)
	}
	return len(p), nil
}

// failed keeps the first error of the live writer and gives it up, except after
// a panic: it gets the later bytes all the same.
func (s *sink) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("client: writing live output: %w", err)
	}
	if _, ok := errors.AsType[*panicError](err); !ok {
		s.live = nil
	}
}

// collect keeps what is to be kept of p and returns the live writer.
func (s *sink) collect(p []byte) io.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += int64(len(p))
	if n := min(len(p), s.headCap-len(s.head)); n > 0 {
		s.head = append(s.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > s.tailCap {
		p = p[len(p)-s.tailCap:]
	}
	if n := min(len(p), s.tailCap-len(s.tail)); n > 0 {
		s.tail = append(s.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(s.tail[s.next:], p)
		p = p[n:]
		s.next = (s.next + n) % s.tailCap
	}
	return s.live
}

func (s *sink) output() (Output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := Output{Head: s.head[:len(s.head):len(s.head)], Omitted: s.total - int64(len(s.head)+len(s.tail))}
	o.Tail = append(append(o.Tail, s.tail[s.next:]...), s.tail[:s.next]...)
	return o, s.err
}
