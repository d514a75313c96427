package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"time"

	"github.com/weft-fabric/weft/client"
)

const echoSize = 64

// echoWeft measures round trips of one write through cat.
func echoWeft(ctx context.Context, lease *client.Lease, n int) ([]time.Duration, error) {
	ch, err := lease.Open(ctx, client.Command{Argv: []string{"cat"}, Stdin: client.StdinPipe})
	if err != nil {
		return nil, err
	}
	ds, err := roundTrips(n, ch, ch)
	if err != nil {
		return nil, err
	}
	return ds, finish(ch)
}

// roundTrips writes to w and reads the same count from r, n times, after some
// that do not count.
func roundTrips(n int, w io.Writer, r io.Reader) ([]time.Duration, error) {
	out := bytes.Repeat([]byte{'x'}, echoSize)
	in := make([]byte, echoSize)
	ds := make([]time.Duration, 0, n)
	for i := range n + n/10 {
		start := time.Now()
		if _, err := w.Write(out); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(r, in); err != nil {
			return nil, err
		}
		if i >= n/10 {
			ds = append(ds, time.Since(start))
		}
	}
	return ds, nil
}

func finish(ch *client.Channel) error {
	if err := ch.CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, ch); err != nil {
		return err
	}
	o, err := ch.Wait()
	if err == nil && !o.Success() {
		err = fmt.Errorf("the command ended with %v", o)
	}
	return err
}

// writer is a command that writes n bytes as fast as it can.
func writer(n int64) []string { return []string{"head", "-c", strconv.FormatInt(n, 10), "/dev/zero"} }

// bulkWeft measures the time from open to the last of n bytes.
func bulkWeft(ctx context.Context, lease *client.Lease, n int64) (time.Duration, error) {
	start := time.Now()
	ch, err := lease.Open(ctx, client.Command{Argv: writer(n)})
	if err != nil {
		return 0, err
	}
	got, err := io.Copy(io.Discard, ch)
	d := time.Since(start)
	if err == nil && got != n {
		err = fmt.Errorf("%d of %d bytes came", got, n)
	}
	if err != nil {
		return 0, err
	}
	_, err = ch.Wait()
	return d, err
}

// catWeft measures n bytes up and down through cat.
func catWeft(ctx context.Context, lease *client.Lease, n int64) (time.Duration, error) {
	start := time.Now()
	ch, err := lease.Open(ctx, client.Command{Argv: []string{"cat"}}, client.WithStdin(io.LimitReader(zero{}, n)))
	if err != nil {
		return 0, err
	}
	got, err := io.Copy(io.Discard, ch)
	d := time.Since(start)
	if err == nil && got != n {
		err = fmt.Errorf("%d of %d bytes came", got, n)
	}
	if err != nil {
		return 0, err
	}
	_, err = ch.Wait()
	return d, err
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// opener is the command whose first byte is waited for.
func opener() []string { return []string{"echo", "x"} }

func openWeft(ctx context.Context, lease *client.Lease, n int) ([]time.Duration, error) {
	ds := make([]time.Duration, 0, n)
	one := make([]byte, 1)
	for i := range n + n/10 {
		start := time.Now()
		ch, err := lease.Open(ctx, client.Command{Argv: opener()})
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(ch, one); err != nil {
			return nil, err
		}
		if i >= n/10 {
			ds = append(ds, time.Since(start))
		}
		if err := finish(ch); err != nil {
			return nil, err
		}
	}
	return ds, nil
}

// forkExec is the same command without weft.
func forkExec(ctx context.Context, n int) ([]time.Duration, error) {
	ds := make([]time.Duration, 0, n)
	one := make([]byte, 1)
	for i := range n + n/10 {
		start := time.Now()
		cmd := exec.CommandContext(ctx, opener()[0], opener()[1:]...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(out, one); err != nil {
			return nil, err
		}
		if i >= n/10 {
			ds = append(ds, time.Since(start))
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			return nil, err
		}
	}
	return ds, nil
}
