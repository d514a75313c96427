package natsbus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// serve answers one verb of all tenants on a connection of its own.
func serve(t *testing.T, srv *natstest.Server, verb string, h func(natsbus.Msg)) *natsbus.Conn {
	t.Helper()
	c := connect(t, options(srv))
	if _, err := c.Subscribe(subjects.APIs(verb), h); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRequestErrors(t *testing.T) {
	srv := natstest.Start(t)
	refusal := wire.Errorf(wire.CodeQuotaExceeded, "no room\r\nNats-Rollup: all").With("key", "wörld")
	serve(t, srv, "good", func(m natsbus.Msg) { _ = m.Respond(append([]byte("re: "), m.Data...)) })
	serve(t, srv, "bad", func(m natsbus.Msg) { _ = m.RespondError(refusal) })
	asked := make(chan struct{}, 1)
	serve(t, srv, "silent", func(natsbus.Msg) { asked <- struct{}{} })
	serve(t, srv, "foreign", func(m natsbus.Msg) {
		nc := srv.Connect(t)
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{
			"Nats-Service-Error": {"went wrong\x1b[31m"}, "Nats-Service-Error-Code": {"FROM_THE_FUTURE"}}})
	})
	c := connect(t, options(srv))

	got, err := c.Request(t.Context(), subjects.API(tenant, "good"), []byte("x"))
	if err != nil || string(got) != "re: x" {
		t.Errorf("good: %q, %v", got, err)
	}
	_, err = c.Request(t.Context(), subjects.API(tenant, "bad"), nil)
	if e, ok := errors.AsType[*wire.Error](err); !ok || !cmp.Equal(e, refusal) {
		t.Errorf("bad: %v", cmp.Diff(refusal, err))
	}
	_, err = c.Request(t.Context(), subjects.API(tenant, "foreign"), nil)
	if wire.CodeOf(err) != "FROM_THE_FUTURE" || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("foreign: %q", err)
	}
	_, err = c.Request(t.Context(), subjects.API(tenant, "nobody"), nil)
	if wire.CodeOf(err) != wire.CodeUnavailable || !errors.Is(err, natsbus.ErrNoResponders) {
		t.Errorf("nobody: %v", err)
	}
	_, err = c.Request(t.Context(), subjects.API(tenant, "good"), make([]byte, 2<<20))
	if wire.CodeOf(err) != wire.CodePayloadTooLarge {
		t.Errorf("2 MiB: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	_, err = c.Request(ctx, subjects.API(tenant, "silent"), nil)
	if wire.CodeOf(err) != wire.CodeDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent: %v", err)
	}
	why := errors.New("because")
	cctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Request(cctx, subjects.API(tenant, "silent"), nil)
		done <- err
	}()
	receive(t, asked)
	stop(why)
	if err := receive(t, done); !errors.Is(err, why) {
		t.Errorf("cancelled: %v, want its cause", err)
	}
}

func TestRequestEndsWhenTheConnectionDrops(t *testing.T) {
	srv := natstest.Start(t)
	asked := make(chan struct{}, 1)
	serve(t, srv, "silent", func(natsbus.Msg) { asked <- struct{}{} })
	c := connect(t, options(srv))
	done := make(chan error, 1)
	go func() {
		_, err := c.Request(t.Context(), subjects.API(tenant, "silent"), nil)
		done <- err
	}()
	receive(t, asked)
	srv.Kill()
	if err := receive(t, done); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("err = %v, want UNAVAILABLE before the deadline", err)
	}
}

func TestS008_S010_BadTokensNeverLeave(t *testing.T) {
	srv := natstest.Start(t)
	c := connect(t, options(srv))
	m := clientMux(t, c)
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	bad := []string{"a.b", "*", ">", "a b", "a\tb", "a\r\nPUB x", "", "_INBOX", "$JS", "..", "-a", "a-",
		strings.Repeat("a", 64), strings.Repeat("a", 5000)}
	before := c.NATS().Stats()
	for _, id := range bad {
		calls := map[string]func() error{
			"tenant":  func() error { _, err := c.Request(t.Context(), subjects.API(id, "info"), nil); return err },
			"verb":    func() error { _, err := c.Request(t.Context(), subjects.API("t1", id), nil); return err },
			"worker":  func() error { return c.Publish(subjects.Heartbeat(id), nil) },
			"client":  func() error { return c.Publish(subjects.KeepaliveUp("t1", "r", id), nil) },
			"route":   func() error { _, err := natsbus.NewWorkerMux(c, id, nil); return err },
			"lease":   func() error { ch := newChannel(); ch.Lease = id; _, err := m.Open(ch); return err },
			"channel": func() error { ch := newChannel(); ch.Channel = id; _, err := m.Open(ch); return err },
			"group":   func() error { _, err := c.QueueSubscribe(subjects.Heartbeats(), id, nil); return err },
			"pattern": func() error { _, err := c.Subscribe(subjects.Orders(id), func(natsbus.Msg) {}); return err },
		}
		if id == "" {
			delete(calls, "group") // no group
		}
		if id == "*" || id == "a.b" {
			delete(calls, "pattern") // a pattern may hold these
		}
		for what, call := range calls {
			if err := call(); wire.CodeOf(err) != wire.CodeInvalidArgument {
				t.Errorf("%s %.20q: %v, want INVALID_ARGUMENT", what, id, err)
			} else if strings.ContainsAny(err.Error(), "\r\n\t") || len(err.Error()) > 300 {
				t.Errorf("%s %.20q: the error repeats it: %.300q", what, id, err)
			}
		}
	}
	if after := c.NATS().Stats(); after.OutMsgs != before.OutMsgs || after.OutBytes != before.OutBytes {
		t.Errorf("%d messages left", after.OutMsgs-before.OutMsgs)
	}
	long := strings.Repeat("a", 63)
	if _, err := c.Request(t.Context(), subjects.API(long, "info"), nil); !errors.Is(err, natsbus.ErrNoResponders) {
		t.Errorf("63 characters: %v, want that nobody answers", err)
	}
	if got := c.Counters().Disconnects; got != 0 || !c.Up() {
		t.Errorf("the connection was lost %d times", got)
	}
}

func TestS011_AnswersGoToInboxesOnly(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect(t)
	makeLog(t, nc, tenant, 1<<20)
	answers := make(chan error, 10)
	server := serve(t, srv, "info", func(m natsbus.Msg) {
		if string(m.Data) == "fail" {
			answers <- m.RespondError(wire.Errorf(wire.CodeNotFound, "no"))
			return
		}
		answers <- m.Respond(nil)
	})
	ask := subjects.API(tenant, "info")
	evil := []string{newChannel().Data(subjects.Up), subjects.ToWorker("w2", "open"), ask,
		"_INBOX.a*", "_INBOX.>", "INBOX.x", "_R_x"}
	spy, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	for i, reply := range evil {
		body := []string{"", "fail"}[i%2]
		if err := nc.PublishRequest(ask, reply, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, answers); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("answer to %s: %v, want INVALID_ARGUMENT", reply, err)
		}
	}
	if got := server.Counters().BadReply; got != uint64(len(evil)) {
		t.Errorf("BadReply = %d, want %d", got, len(evil))
	}
	if err := server.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("test.end", nil); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := spy.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == "test.end" {
			break
		}
		if m.Subject != ask || m.Reply == "" {
			t.Errorf("somebody sent to %s", m.Subject)
		}
	}
	// A request without a reply subject is fine and gets no answer.
	if err := nc.Publish(ask, nil); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, answers); err != nil {
		t.Error(err)
	}
}

func TestReplyAllowed(t *testing.T) {
	for reply, want := range map[string]bool{
		"_INBOX.abc": true, "_INBOX_w1.abc.1": true, nats.NewInbox(): true, "_R_.AbC.123": true,
		"": false, "_INBOX..a": false, "_INBOX.a.": false, "_INBOX.*": false, "_INBOX.a b": false,
		"_inbox.a": false, "x._INBOX": false, "_R_": false, "_R_x": false, "_INBOX.a\r\nPUB x": false,
		"_INBOX." + strings.Repeat("a", 600): false, "$JS.API.INFO": false,
	} {
		if got := natsbus.ReplyAllowed(reply); got != want {
			t.Errorf("ReplyAllowed(%.40q) = %t", reply, got)
		}
	}
}

// TestF2_SubscribeFlushLosesNothing pins what "ready" rests on.
func TestF2_SubscribeFlushLosesNothing(t *testing.T) {
	srv := natstest.Start(t)
	in, out := connect(t, options(srv)), connect(t, options(srv))
	for i := range 200 {
		got := make(chan string, 1)
		worker := fmt.Sprint("w", i)
		sub, err := in.Subscribe(subjects.Heartbeat(worker), func(m natsbus.Msg) { got <- m.Subject })
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := out.Publish(subjects.Heartbeat(worker), nil); err != nil {
			t.Fatal(err)
		}
		receive(t, got)
		sub.Close()
	}
}
