package client

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestKeepalive_OnePerRouteAndNoneWithoutChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		l := d.lease(d.client(Options{}))
		var all []*Channel
		for range 3 {
			all = append(all, mustOpen(t, l, Command{}))
		}
		time.Sleep(time.Minute)
		n := d.asked(subjects.Keepalive)
		if n < 10 || n > 15 { // every 5 s ± 20 %
			t.Errorf("%d keepalives in a minute", n)
		}
		for _, ch := range all {
			d.workers[ch.ID()].Finish(wire.ExitedWith(0))
			if _, err := ch.Wait(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if more := d.asked(subjects.Keepalive) - n; more != 0 {
			t.Errorf("%d keepalives without a channel", more)
		}
		synctest.Wait()
		if len(l.c.routes) != 0 || len(l.c.crew.jobs) != 0 {
			t.Errorf("%d routes and %d goroutines are left", len(l.c.routes), len(l.c.crew.jobs))
		}
	})
}

func TestKeepalive_At500ProbesAMessageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		l := d.lease(d.client(Options{}))
		for range wire.KeepaliveMax + 1 {
			mustOpen(t, l, Command{})
		}
		var sizes []int
		d.setKeepalive(func(ctx context.Context, b []byte) ([]byte, error) {
			sizes = append(sizes, len(b)/wire.StateSize)
			return d.answerProbes(ctx, b)
		})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(sizes) != 2 || sizes[0] != wire.KeepaliveMax || sizes[1] != 1 {
			t.Errorf("messages of %v probes", sizes)
		}
	})
}

func TestKeepalive_SilentThenLostOnTheRecordsWord(t *testing.T) {
	for name, miss := range map[string]answer{"no responders": noResponders, "no answer": silence} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				var told notices
				start := time.Now()
				d.set(subjects.APIChannel, func(ctx context.Context, b []byte) ([]byte, error) {
					if time.Since(start) < time.Minute {
						return wire.Encode(wire.ChannelReply{Channel: wire.Channel{State: "open"}}), nil
					}
					return recorded(wire.Outcome{Kind: wire.WorkerLost}, nil)(ctx, b)
				})
				d.setKeepalive(miss)
				ch := mustOpen(t, d.lease(d.client(Options{OnNotice: told.add})), Command{})
				say(t, d.workers[ch.ID()], wire.Stdout, "before")
				time.Sleep(10 * time.Second)
				if k := told.kinds(); k != "worker_silent" {
					t.Errorf("after 10 s the notices are %q", k)
				}
				time.Sleep(49 * time.Second)
				if !ch.running() {
					t.Error("ended before the record said so")
				}
				if n := d.asked(subjects.APIChannel); n < 7 || n > 30 {
					t.Errorf("%d questions in a minute", n)
				}
				o, err := ch.Wait()
				if o.Kind != WorkerLost || CodeOf(err) != CodeChannelEnded || o.ExitCode() != 255 {
					t.Errorf("Wait: %v, %v", o, err)
				}
				if took := time.Since(start); took > 75*time.Second {
					t.Errorf("the end came after %v", took)
				}
				b, rerr := io.ReadAll(ch)
				if e, ok := errors.AsType[*Error](rerr); string(b) != "before" || !ok || e.Details["outcome"] != "worker_lost" {
					t.Errorf("read %q, %v", b, rerr)
				}
				if k := told.kinds(); k != "worker_silent worker_lost" {
					t.Errorf("the notices are %q", k)
				}
			})
		})
	}
}

func TestKeepalive_SilentAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		var told notices
		d.set(subjects.APIChannel, refuse(CodeUnavailable)) // no coordinator either
		ch := mustOpen(t, d.lease(d.client(Options{OnNotice: told.add})), Command{})
		d.setKeepalive(silence)
		time.Sleep(30 * time.Second)
		d.setKeepalive(d.answerProbes)
		time.Sleep(30 * time.Second)
		if k := told.kinds(); k != "worker_silent worker_back" {
			t.Errorf("the notices are %q", k)
		}
		d.workers[ch.ID()].Finish(wire.ExitedWith(0))
		if o, err := ch.Wait(); !o.Success() || err != nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
	})
}

// A connection that is down says nothing about the worker.
func TestKeepalive_OurOwnConnectionIsNoMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		var told notices
		c := d.client(Options{OnNotice: told.add})
		mustOpen(t, d.lease(c), Command{})
		d.mu.Lock()
		d.up = false
		d.mu.Unlock()
		c.onDown()
		d.setKeepalive(refuse(CodeUnavailable))
		time.Sleep(time.Minute)
		d.mu.Lock()
		d.up = true
		d.mu.Unlock()
		c.onUp()
		if k := told.kinds(); k != "connection_lost connection_back" {
			t.Errorf("the notices are %q", k)
		}
	})
}

func TestKeepalive_GoneEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set(subjects.APIChannel, refuse(CodeNotFound))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.forget()
		if o, err := ch.Wait(); o.Kind != Unknown || LayerOf(o, err) != LayerWorker {
			t.Errorf("Wait: %v, %v", o, err)
		}
	})
}

// A worker that came back without the channel, and coordinators that have not
// noticed yet: the client goes on asking.
func TestKeepalive_GoneButOpenOnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		start := time.Now()
		d.set(subjects.APIChannel, func(ctx context.Context, b []byte) ([]byte, error) {
			if time.Since(start) < 30*time.Second {
				return wire.Encode(wire.ChannelReply{Channel: wire.Channel{State: "open"}}), nil
			}
			return recorded(wire.Outcome{Kind: wire.WorkerLost}, nil)(ctx, b)
		})
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		d.forget()
		if o, _ := ch.Wait(); o.Kind != WorkerLost || time.Since(start) < 30*time.Second || time.Since(start) > 45*time.Second {
			t.Errorf("outcome %v after %v", o, time.Since(start))
		}
	})
}

func TestKeepalive_AnswersReachTheirChannels(t *testing.T) {
	t.Run("fenced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newDouble(t)
			l := d.lease(d.client(Options{}))
			ch, other := mustOpen(t, l, Command{}), mustOpen(t, l, Command{})
			d.setKeepalive(func(ctx context.Context, b []byte) ([]byte, error) {
				out, err := d.answerProbes(ctx, b)
				return wire.AppendFenced(out, ch.id, 1, wire.KeyDown(secretOf(ch))), err
			})
			if o, err := ch.Wait(); o.Kind != Unknown || !errors.Is(err, ErrFenced) {
				t.Errorf("Wait: %v, %v", o, err)
			}
			if !other.running() {
				t.Error("another channel was fenced too")
			}
		})
	})
	t.Run("garbage", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newDouble(t)
			ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
			d.setKeepalive(func(context.Context, []byte) ([]byte, error) { return []byte("garbage"), nil })
			time.Sleep(time.Minute)
			if !ch.running() {
				t.Error("garbage ended the channel")
			}
		})
	})
}

func TestClose_LeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a goroutine left over fails the bubble
		d := newDouble(t)
		c := d.client(Options{})
		l := d.lease(c)
		l.KeepAlive()
		ch := mustOpen(t, l, Command{Stdin: StdinPipe}, WithStdout(io.Discard))
		read := make(chan error, 1)
		go func() {
			_, err := ch.Stderr().Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-read; CodeOf(err) == "" || err == io.EOF {
			t.Errorf("the reader was told %v", err)
		}
		if _, err := l.Open(t.Context(), Command{Argv: []string{"x"}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Open after Close: %v", err)
		}
		c.Close()
	})
}
