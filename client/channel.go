package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/wire"
)

// Channel is one running command. Read gives its standard output, Write fills
// its standard input. One goroutine at a time may read a stream, and one may
// write; everything else may be called from any goroutine.
//
// See the package's notes on reading: a stream that nobody takes blocks the
// command in the end.
type Channel struct {
	// Set once.
	place
	c       *Client
	mode    wire.Mode
	stdin   bool // Write has somewhere to go
	opts    options
	port    port
	end     *duplex.End
	holding holding // set before anything of the channel runs

	pumps    sync.WaitGroup // of the output; done waits for them
	dropped  [4]atomic.Bool // streams that were closed for reading here
	complete atomic.Bool    // every byte came, though EXIT did not
	detached atomic.Bool    // on purpose
	recorded chan struct{}  // closed with record
	done     chan struct{}  // closed with result

	mu     sync.Mutex
	record *endRecord
	errs   []error // of the caller's writers and reader, and of the log
	result result
	linger *time.Timer
	freed  bool
}

// place is where a channel is.
type place struct {
	id        uuid.UUID
	lease     string
	epoch     wire.Epoch
	routeName string
}

// result is what Wait returns.
type result struct {
	outcome Outcome
	err     error
}

var (
	_ io.ReadWriteCloser = (*Channel)(nil)
	_ io.WriterTo        = (*Channel)(nil)
)

// Totals counts the bytes of a channel's streams.
type Totals = wire.Totals

// ID is the channel's UUID.
func (c *Channel) ID() string { return c.id.String() }

// Read reads standard output and blocks until there is some. io.EOF says that
// every byte was delivered; another error that there may have been more.
func (c *Channel) Read(p []byte) (int, error) { return c.ReadContext(context.Background(), p) }

// ReadContext is Read that gives up when ctx ends; nothing is lost then.
func (c *Channel) ReadContext(ctx context.Context, p []byte) (int, error) {
	return c.read(ctx, wire.Stdout, p)
}

// WriteTo writes standard output to w until its end, without the copy that Read
// makes. The error is nil at the end of the stream.
func (c *Channel) WriteTo(w io.Writer) (int64, error) {
	if err := c.readable(wire.Stdout); err != nil {
		return 0, err
	}
	n, err := c.copyTo(wire.Stdout, w.Write)
	c.settle()
	if werr, ok := errors.AsType[*writeError](err); ok {
		return n, werr.err
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// CloseStdout says that standard output is not wanted any more: what is there
// and what comes is taken and dropped, so the command goes on.
func (c *Channel) CloseStdout() { c.drop(wire.Stdout) }

// Stderr is standard error; its Close is what CloseStdout is for standard output.
func (c *Channel) Stderr() io.ReadCloser { return stderr{c} }

// stderr is the reader of one stream.
type stderr struct{ c *Channel }

func (s stderr) Read(p []byte) (int, error) { return s.c.read(context.Background(), wire.Stderr, p) }

func (s stderr) Close() error {
	s.c.drop(wire.Stderr)
	return nil
}

func (c *Channel) drop(st wire.Stream) {
	c.dropped[st].Store(true)
	c.end.Discard(st)
	c.settle()
}

func (c *Channel) read(ctx context.Context, st wire.Stream, p []byte) (int, error) {
	if err := c.readable(st); err != nil || len(p) == 0 {
		return 0, err
	}
	n, err := c.end.Read(ctx, st, p)
	c.settle()
	return n, c.readError(ctx, err)
}

// readable returns why the caller may not read st, or nil.
func (c *Channel) readable(st wire.Stream) error {
	switch {
	case c.opts.merged != nil, st == wire.Stdout && c.opts.stdout != nil, st == wire.Stderr && c.opts.stderr != nil:
		return wire.Errorf(CodeInvalidArgument, "%s goes to the writer that the channel was opened with", st)
	case c.dropped[st].Load():
		return wire.Errorf(CodeChannelEnded, "%s was closed for reading on this side", st)
	}
	return nil
}

// readError is what a reader is told instead of err.
func (c *Channel) readError(ctx context.Context, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if wire.CodeOf(err) != "" && c.complete.Load() {
		return io.EOF
	}
	return typed(ctx, "reading", err)
}

// Chunk is bytes of one output stream.
type Chunk struct {
	Stderr bool // else of standard output
	Data   []byte
}

// ReadChunk returns the next bytes of either output stream, in the order in
// which the worker read them; the caller may keep them. io.EOF follows the end
// of both. It is not to be mixed with Read.
func (c *Channel) ReadChunk(ctx context.Context) (Chunk, error) {
	if err := c.readable(wire.StreamNone); err != nil {
		return Chunk{}, err
	}
	k, err := c.end.NextChunk(ctx)
	c.settle()
	return Chunk{Stderr: k.Stream == wire.Stderr, Data: k.Data}, c.readError(ctx, err)
}

// Write sends p to the command's standard input and blocks until there is room
// for all of it. With fewer bytes taken the error says why: STDIN_CLOSED with
// the detail "taken" when the command closed its standard input, CHANNEL_ENDED
// when it has ended. That Write has returned does not mean that the command has
// read anything; see TakenByProcess.
func (c *Channel) Write(p []byte) (int, error) { return c.WriteContext(context.Background(), p) }

// WriteContext is Write that gives up when ctx ends. What was taken until then
// is sent.
func (c *Channel) WriteContext(ctx context.Context, p []byte) (int, error) {
	switch {
	case !c.stdin:
		return 0, wire.Errorf(CodeStdinClosed, "the command has no standard input; set Command.Stdin to StdinPipe")
	case c.opts.stdin != nil:
		return 0, wire.Errorf(CodeInvalidArgument, "standard input comes from the reader that the channel was opened with")
	}
	n, err := c.end.Write(ctx, wire.Stdin, p)
	return n, typed(ctx, "writing", err)
}

// CloseWrite ends the command's standard input after what was written.
// Calling it again does nothing.
func (c *Channel) CloseWrite() error {
	if c.stdin {
		c.end.CloseStream(wire.Stdin)
	}
	return nil
}

// TakenByProcess is how many bytes of standard input the command's pipe has
// taken, as far as the worker has told.
func (c *Channel) TakenByProcess() int64 {
	n := c.end.Written()
	if x, _ := c.end.Exit(); x != nil {
		n = max(n, x.Totals.Stdin)
	}
	return int64(n)
}

// Totals is the count of bytes so far: of standard input as TakenByProcess, of
// the outputs what has arrived; after the end what the worker says of them.
func (c *Channel) Totals() Totals {
	if x, _ := c.end.Exit(); x != nil {
		return x.Totals
	}
	t := c.end.Received()
	t.Stdin = c.end.Written()
	return t
}

// Signal sends a signal by its name, with or without SIG, to the command and
// its process group. It does not wait behind data. Errors: INVALID_ARGUMENT for
// a name that is none; CHANNEL_ENDED with the detail "outcome".
func (c *Channel) Signal(ctx context.Context, name string) error {
	if wire.SignalNumber(name) == 0 {
		return wire.Errorf(CodeInvalidArgument, "that is not the name of a signal; names are such as INT, TERM, KILL")
	}
	return c.control(ctx, wire.Request{Verb: wire.VerbSignal, Signal: strings.TrimPrefix(name, "SIG")})
}

// Stop asks for the end of the command: TERM to all of it, KILL after grace (0:
// the command's own). The outcome is ended_by_request. It returns when the
// worker has taken the request; the end is for Wait. Errors as Signal.
func (c *Channel) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		return wire.Errorf(CodeInvalidArgument, "the grace is negative")
	}
	return c.control(ctx, wire.Request{Verb: wire.VerbStop, GraceMS: millis(grace)})
}

func (c *Channel) control(ctx context.Context, r wire.Request) error {
	if c.holding.attach == 0 {
		return wire.Errorf(CodeChannelEnded, "the command has ended already; this is what is left of its output")
	}
	err := c.end.Request(ctx, r)
	if wire.CodeOf(err) == CodeChannelEnded {
		if x, _ := c.end.Exit(); x != nil {
			return wire.Errorf(CodeChannelEnded, "the command has ended already: %s", x.Outcome).
				With(detailOutcome, x.Outcome.String())
		}
	}
	return typed(ctx, "the request to the worker", err)
}

// Done is closed when the outcome is known and everything that the library
// pumps has been delivered.
func (c *Channel) Done() <-chan struct{} { return c.done }

// Wait waits for the end of the command and of what the library pumps, and
// returns the outcome. Streams that nobody reads can keep the end from coming.
//
// An error says that something beside the command went wrong: its end or part
// of its output did not arrive (the outcome is then what the coordinators have
// on record, data_lost, or unknown), or a writer or reader of the caller failed.
// A command that fails is no error. Wait may be called often and from anywhere.
func (c *Channel) Wait() (Outcome, error) { return c.WaitContext(context.Background()) }

// WaitContext is Wait that gives up when ctx ends; the command goes on.
func (c *Channel) WaitContext(ctx context.Context) (Outcome, error) {
	select {
	case <-c.done:
		return c.result.outcome, c.result.err // set before done was closed
	case <-ctx.Done():
		return Outcome{Kind: Unknown}, typed(ctx, "waiting for the end", context.Cause(ctx))
	}
}

// closeWait bounds how long Close waits for the end that it asked for.
const closeWait = 2 * time.Second

// Close gives the channel up: output that was not read is dropped, and a command
// that still runs is ended by the coordinators. It waits up to 2 s for the
// outcome, which is unknown if it does not come. After the end it only drops.
func (c *Channel) Close() error {
	c.drop(wire.Stdout)
	c.drop(wire.Stderr)
	var err error
	if c.running() && (c.holding.attach == 0 || c.fenced(context.Background())) {
		c.end.Fail(errFenced()) // the command, if it runs, is another client's
	}
	if c.running() {
		if err = c.kill(context.Background(), killTimeout); err != nil {
			c.killLater()
		}
		t := time.NewTimer(closeWait)
		defer t.Stop()
		select {
		case <-c.done:
			err = nil
		case <-t.C:
		}
		c.end.Fail(endError(CodeChannelEnded, LayerTransport, Outcome{}, "the channel was closed before the command's end had arrived"))
	}
	<-c.done
	c.free()
	return err
}

func (c *Channel) running() bool {
	select {
	case <-c.end.Done():
		return false
	default:
		return true
	}
}

// note keeps an error of the caller's own reader or writer for Wait.
func (c *Channel) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) < 4 { // a writer that panics does so at every chunk
		c.errs = append(c.errs, err)
	}
}

// lingerTime is how long the worker is still told what is read after the end.
// What is read later is read from memory, and the worker keeps it a while.
const lingerTime = 30 * time.Second

// watch sees the channel's end and records it.
func (c *Channel) watch(ctx context.Context) {
	c.awaitEnd(ctx)
	c.c.leave(c)
	c.pumps.Wait()
	if c.detached.Load() {
		c.sayGoodbye()
	}
	r := c.holding.withMissing(c.conclude())
	c.mu.Lock()
	r.err = join(append([]error{r.err}, c.errs...)...)
	c.result = r
	close(c.done)
	if !c.freed {
		c.linger = time.AfterFunc(lingerTime, c.free)
	}
	c.mu.Unlock()
	c.settle()
}

// settle frees the channel once it has ended and everything was taken.
func (c *Channel) settle() {
	select {
	case <-c.done:
	default:
		return
	}
	if x, _ := c.end.Exit(); x != nil {
		for _, st := range [...]wire.Stream{wire.Stdout, wire.Stderr} {
			if _, err := c.end.Peek(st); err == nil {
				return
			}
		}
	}
	c.free()
}

// free gives back what the channel holds of the client. What has arrived can
// still be read.
func (c *Channel) free() {
	c.mu.Lock()
	freed := c.freed
	c.freed = true
	if c.linger != nil {
		c.linger.Stop()
	}
	c.mu.Unlock()
	if freed {
		return
	}
	c.end.Close()
	c.port.Close()
	c.c.mu.Lock()
	delete(c.c.channels, c)
	c.c.mu.Unlock()
}
