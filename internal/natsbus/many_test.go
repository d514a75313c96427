package natsbus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/natstest"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestRequestMany(t *testing.T) {
	srv := natstest.Start(t)
	peer := srv.Connect(t)
	_, err := peer.Subscribe(subjects.Replay(tenant), func(m *nats.Msg) {
		for _, s := range strings.Split(string(m.Data), ",") {
			answer := nats.NewMsg(m.Reply)
			answer.Data = []byte(s)
			answer.Header.Set("X", "of "+s)
			if s == "error" {
				answer.Header.Set("Nats-Service-Error-Code", string(wire.CodeNotFound))
			}
			if err := peer.PublishMsg(answer); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Flush(); err != nil {
		t.Fatal(err)
	}
	c := connect(t, options(srv))
	ask := func(ctx context.Context, body string) (string, error) {
		var got []string
		err := c.RequestMany(ctx, subjects.Replay(tenant), []byte(body), func(m natsbus.Msg) bool {
			got = append(got, string(m.Data)+" "+m.Header("X"))
			return string(m.Data) != "end"
		})
		return strings.Join(got, ";"), err
	}
	if got, err := ask(t.Context(), "a,b,end,c"); got != "a of a;b of b;end of end" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := ask(t.Context(), "a,error,b"); got != "a of a" || wire.CodeOf(err) != wire.CodeNotFound {
		t.Errorf("%q, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, err := ask(ctx, "a"); got != "a of a" || wire.CodeOf(err) != wire.CodeDeadlineExceeded {
		t.Errorf("without an end: %q, %v", got, err)
	}
	subs := c.NATS().NumSubscriptions()
	err = c.RequestMany(t.Context(), subjects.Replay("other"), nil, func(natsbus.Msg) bool { return true })
	if wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("nobody there: %v", err)
	}
	if n := c.NATS().NumSubscriptions(); n != subs {
		t.Errorf("%d subscriptions, %d before", n, subs)
	}
	if err := c.RequestMany(t.Context(), "a.*", nil, nil); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("a bad subject: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		done <- c.RequestMany(t.Context(), subjects.Replay(tenant), []byte("a"), func(natsbus.Msg) bool {
			go srv.Kill()
			return true
		})
	}()
	if err := receive(t, done); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("when the connection drops: %v", err)
	}
}
