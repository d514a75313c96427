package main

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/fabric"
)

// chunk is what the raw side puts in one message: weft's largest frame.
const chunk = 64 << 10

// raw is the same job without weft: a process behind two core NATS subjects, no
// log, no credit, no tag, no repair. Subscriptions are unbounded so that
// nothing is dropped.
type raw struct {
	agent, host *nats.Conn
}

func newRaw(stack *fabric.Stack, tcp bool) (*raw, error) {
	connect := func() (*nats.Conn, error) {
		if tcp {
			return nats.Connect(stack.URL(), nats.Token(stack.Token()))
		}
		return nats.Connect("", nats.InProcessServer(stack.InProcess()), nats.Token(stack.Token()))
	}
	a, err := connect()
	if err != nil {
		return nil, err
	}
	h, err := connect()
	if err != nil {
		a.Close()
		return nil, err
	}
	return &raw{agent: a, host: h}, nil
}

func (r *raw) close() { r.agent.Close(); r.host.Close() }

// session is one raw command: a process whose stdin and stdout are subjects.
type session struct {
	r       *raw
	up      string
	out     *io.PipeReader
	cleanup []func()
}

func (s *session) Write(p []byte) (int, error) { return len(p), s.r.agent.Publish(s.up, p) }
func (s *session) Read(p []byte) (int, error)  { return s.out.Read(p) }

func (s *session) close() {
	for i := len(s.cleanup) - 1; i >= 0; i-- {
		s.cleanup[i]()
	}
}

func (r *raw) start(ctx context.Context, argv []string) (*session, error) {
	id := nats.NewInbox()
	s := &session{r: r, up: id + ".up"}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	s.out = pr
	down, err := r.agent.Subscribe(id+".down", func(m *nats.Msg) {
		if len(m.Data) == 0 {
			_ = pw.Close()
			return
		}
		_, _ = pw.Write(m.Data)
	})
	if err != nil {
		return nil, err
	}
	up, err := r.host.Subscribe(s.up, func(m *nats.Msg) {
		if len(m.Data) == 0 {
			_ = stdin.Close()
			return
		}
		_, _ = stdin.Write(m.Data)
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(down.SetPendingLimits(-1, -1), up.SetPendingLimits(-1, -1), r.agent.Flush(), r.host.Flush(), cmd.Start()); err != nil {
		return nil, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, chunk)
		for {
			n, err := stdout.Read(buf)
			if n > 0 {
				_ = r.host.Publish(id+".down", buf[:n])
			}
			if err != nil {
				_ = r.host.Publish(id+".down", nil)
				return
			}
		}
	}()
	s.cleanup = append(s.cleanup, func() {
		_ = r.agent.Publish(s.up, nil)
		<-read
		_ = cmd.Wait()
		_ = pr.Close()
		_, _ = down.Unsubscribe(), up.Unsubscribe()
	})
	return s, nil
}

func (r *raw) echo(ctx context.Context, n int) ([]time.Duration, error) {
	s, err := r.start(ctx, []string{"cat"})
	if err != nil {
		return nil, err
	}
	defer s.close()
	return roundTrips(n, s, s)
}

func (r *raw) bulk(ctx context.Context, n int64) (time.Duration, error) {
	start := time.Now()
	s, err := r.start(ctx, writer(n))
	if err != nil {
		return 0, err
	}
	defer s.close()
	_, err = io.CopyN(io.Discard, s, n)
	return time.Since(start), err
}

func (r *raw) cat(ctx context.Context, n int64) (time.Duration, error) {
	start := time.Now()
	s, err := r.start(ctx, []string{"cat"})
	if err != nil {
		return 0, err
	}
	defer s.close()
	sent := make(chan error, 1)
	go func() {
		p := make([]byte, chunk)
		for left := n; left > 0; left -= int64(len(p)) {
			p = p[:min(left, chunk)]
			if _, err := s.Write(p); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	_, err = io.CopyN(io.Discard, s, n)
	d := time.Since(start)
	return d, errors.Join(err, <-sent)
}
