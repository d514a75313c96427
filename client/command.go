package client

import (
	"io"
	"time"
	"unicode/utf8"

	"github.com/weft-fabric/weft/internal/wire"
)

// StdinKind is what a command's standard input is.
type StdinKind = wire.StdinKind

// The kinds of standard input: /dev/null, or a pipe that Write fills.
const (
	StdinNone = wire.StdinNone
	StdinPipe = wire.StdinPipe
)

// Command is what to run and how. Only Argv is required.
type Command struct {
	// Argv is the command and its arguments. No shell touches them.
	Argv []string
	// Cwd is relative to the sandbox's root; default the root.
	Cwd string
	// Env is added to the sandbox's clean environment.
	Env map[string]string
	// Stdin is StdinPipe if WithStdin is given, else StdinNone by default.
	Stdin StdinKind
	// Timeout is the command's deadline from its start; 0: none. When it passes
	// the command and all its descendants get TERM, and KILL after Grace.
	Timeout time.Duration
	// Grace is the time between TERM and KILL; default 5 s.
	Grace time.Duration
	// OnDisconnect says what becomes of the command when this client is gone.
	OnDisconnect OnDisconnect
	// MaxOutput ends the command with limit_exceeded after so many bytes of
	// stdout and stderr in all; 0: no limit.
	MaxOutput int64
	// Lifetime ends the channel with limit_exceeded; 0: no limit.
	Lifetime time.Duration
}

// OnDisconnect is what becomes of a command whose client has been silent for
// three keepalives. The zero value kills it after 30 s.
type OnDisconnect struct {
	Keep      bool          // let it run
	KeepFor   time.Duration // with Keep: no longer than this; 0: no limit
	KillAfter time.Duration // default 30 s
}

// exec makes the body of an open and checks it.
func (c Command) exec(mode wire.Mode) (wire.Exec, error) {
	e := wire.Exec{
		Mode: mode, Argv: c.Argv, Cwd: c.Cwd, Env: c.Env, Stdin: c.Stdin,
		TimeoutMS: millis(c.Timeout), GraceMS: millis(c.Grace),
		MaxOutput: c.MaxOutput, LifetimeMS: millis(c.Lifetime),
	}
	if c.Timeout < 0 || c.Grace < 0 || c.Lifetime < 0 || min(c.OnDisconnect.KillAfter, c.OnDisconnect.KeepFor) < 0 {
		return e, wire.Errorf(CodeInvalidArgument, "a time limit of the command is negative")
	}
	switch d := c.OnDisconnect; {
	case d.Keep && d.KillAfter > 0:
		return e, wire.Errorf(CodeInvalidArgument, "OnDisconnect says both Keep and KillAfter")
	case d.KeepFor > 0 && !d.Keep:
		return e, wire.Errorf(CodeInvalidArgument, "OnDisconnect says KeepFor without Keep")
	case d.Keep:
		e.OnDisconnect = &wire.OnDisconnect{Policy: wire.Keep, AfterMS: millis(d.KeepFor)}
	case d.KillAfter > 0:
		e.OnDisconnect = &wire.OnDisconnect{Policy: wire.KillAfter, AfterMS: millis(d.KillAfter)}
	}
	if e.Stdin == wire.StdinPTY {
		return e, wire.Errorf(CodeInvalidArgument, "this client opens no terminals")
	}
	// JSON would replace other bytes in silence.
	if !c.isUTF8() {
		return e, wire.Errorf(CodeInvalidArgument, "an argument, the cwd or the environment is not UTF-8")
	}
	return e, e.Check()
}

func (c Command) isUTF8() bool {
	ok := utf8.ValidString(c.Cwd)
	for _, a := range c.Argv {
		ok = ok && utf8.ValidString(a)
	}
	for k, v := range c.Env {
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	return ok
}

// Option changes what Open, Execute and OpenOrExecute do with the streams.
type Option func(*options)

type options struct {
	stdin          io.Reader
	skip           bool // stdin begins at the command's first byte
	stdout, stderr io.Writer
	merged         func(Chunk)
	keep           int // bytes kept of each stream by Execute
}

// WithStdin sends what r gives, then the end of the input. The command may end
// before r does: Wait does not wait for a Read of r that has not returned. An
// error of r ends the input and is part of Wait's error.
func WithStdin(r io.Reader) Option { return func(o *options) { o.stdin = r } }

// WithStdout has the library write standard output to w as it comes. An error
// of w means that the rest is taken and dropped, and is part of Wait's error.
// With Execute it is the live copy of what the result keeps.
func WithStdout(w io.Writer) Option { return func(o *options) { o.stdout = w } }

// WithStderr is WithStdout for standard error.
func WithStderr(w io.Writer) Option { return func(o *options) { o.stderr = w } }

// WithMerged calls f with the bytes of both output streams in the order in
// which the worker read them. f may keep the slice. Not with Execute, WithStdout
// or WithStderr.
func WithMerged(f func(Chunk)) Option { return func(o *options) { o.merged = f } }

// WithOutputKept sets how many bytes of each stream Execute keeps: the first
// half and the last half of them. Default 1 MiB.
func WithOutputKept(n int) Option { return func(o *options) { o.keep = n } }

func (c Command) options(opts []Option) (options, error) {
	o := options{keep: wire.DefaultOutputKept}
	for _, f := range opts {
		f(&o)
	}
	switch {
	case o.keep < 0:
		return o, wire.Errorf(CodeInvalidArgument, "the output to keep is a negative number of bytes")
	case o.merged != nil && (o.stdout != nil || o.stderr != nil):
		return o, wire.Errorf(CodeInvalidArgument, "WithMerged cannot be combined with WithStdout or WithStderr")
	case o.stdin != nil && c.Stdin == StdinNone:
		return o, wire.Errorf(CodeInvalidArgument, "WithStdin was given and the command's Stdin is none")
	}
	return o, nil
}
