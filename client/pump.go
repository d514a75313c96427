package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/internal/wire"
)

// panicError is a panic of the caller's own code that was stopped here.
type panicError struct{ value string }

func (p *panicError) Error() string { return "client: a callback of the channel panicked: " + p.value }

// guarded calls f and turns a panic into an error: a mistake in one channel's
// callback ends neither the program nor another channel.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: fmt.Sprint(p)}
		}
	}()
	return f()
}

// startPumps starts what moves bytes for the caller. The output pumps end with
// the channel and done waits for them; the input pump ends when its reader
// returns, which nothing here can hasten, so nobody waits for it.
func (c *Channel) startPumps() {
	if f := c.opts.merged; f != nil {
		c.pumps.Go(func() { c.pumpMerged(f) })
	}
	if w := c.opts.stdout; w != nil {
		c.pumps.Go(func() { c.pumpOut(wire.Stdout, w) })
	}
	if w := c.opts.stderr; w != nil {
		c.pumps.Go(func() { c.pumpOut(wire.Stderr, w) })
	}
	if r := c.opts.stdin; r != nil {
		go c.pumpIn(r)
	}
}

// pumpOut writes st to w. After a panic w gets the later bytes all the same;
// after an error the rest is taken and dropped.
func (c *Channel) pumpOut(st wire.Stream, w io.Writer) {
	_, err := c.copyTo(st, func(p []byte) (n int, err error) {
		err = guarded(func() error {
			n, err = w.Write(p)
			return err
		})
		if _, ok := errors.AsType[*panicError](err); ok {
			c.note(err)
			return len(p), nil
		}
		return n, err
	})
	if werr, ok := errors.AsType[*writeError](err); ok {
		c.note(fmt.Errorf("client: writing %s: %w", st, werr.err))
		c.drop(st)
	}
}

// writeError tells an error of the caller's writer from one of the channel.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// copyTo gives st to write until the stream ends (io.EOF) or either side fails.
func (c *Channel) copyTo(st wire.Stream, write func([]byte) (int, error)) (int64, error) {
	var total int64
	for {
		data, err := c.end.Next(context.Background(), st)
		if err != nil {
			return total, c.readError(context.Background(), err)
		}
		n, err := write(data)
		n = min(max(n, 0), len(data))
		total += int64(n)
		c.end.Take(st, n)
		if err == nil && n < len(data) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, &writeError{err}
		}
	}
}

func (c *Channel) pumpMerged(f func(Chunk)) {
	for {
		k, err := c.end.NextChunk(context.Background())
		if err != nil {
			return // the end, or the channel's failure, which Wait tells
		}
		err = guarded(func() error {
			f(Chunk{Stderr: k.Stream == wire.Stderr, Data: k.Data})
			return nil
		})
		if err != nil {
			c.note(err)
		}
	}
}

// pumpIn sends r and then the end of the input.
func (c *Channel) pumpIn(r io.Reader) {
	if c.opts.skip && !c.skipIn(r) {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		var n int
		err := guarded(func() (err error) {
			n, err = r.Read(buf)
			return err
		})
		if n > 0 {
			// It fails when the command has ended or wants no more: no fault of r.
			if _, werr := c.end.Write(context.Background(), wire.Stdin, buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				c.note(fmt.Errorf("client: reading standard input: %w", err))
			}
			c.end.CloseStream(wire.Stdin)
			return
		}
	}
}

// skipIn reads what the worker has taken already before this client came. It
// reports false when r fails or ends before.
func (c *Channel) skipIn(r io.Reader) bool {
	var n int64
	err := guarded(func() (err error) {
		n, err = io.CopyN(io.Discard, r, c.holding.at.Stdin)
		return err
	})
	if err == nil {
		return true
	}
	c.note(fmt.Errorf("client: reading standard input: after %d bytes, of which the worker has taken %d before: %w", n, c.holding.at.Stdin, err))
	c.end.CloseStream(wire.Stdin)
	return false
}
