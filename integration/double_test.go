package integration

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// double is a worker that says of its sandboxes what no honest one would.
type double struct {
	instance string
	opened   atomic.Int32
}

// newDouble registers a worker w2 that beats until the test ends.
func newDouble(t *testing.T, nc *nats.Conn) *double {
	t.Helper()
	d := &double{instance: uuid.NewString()}
	_, err := nc.Subscribe(subjects.Orders("w2"), func(m *nats.Msg) {
		var reply any = wire.ProbeReply{Instance: d.instance, State: wire.WorkerReady}
		switch m.Subject[strings.LastIndexByte(m.Subject, '.')+1:] {
		case subjects.WKBind:
			reply = wire.BindReply{
				Instance: d.instance, State: wire.BindBound, Driver: "double",
				Metadata: wire.Metadata{
					wire.MetadataSandboxProviderPlugin: "p", wire.MetadataPluginID: "p", wire.MetadataProvider: "v",
				},
				Capabilities: []wire.Capability{wire.CapDuplexCommandStream, wire.CapExecute},
			}
		case subjects.WKRelease:
			reply = wire.ReleaseReply{Instance: d.instance}
		case subjects.WKOpen:
			d.opened.Add(1)
			return
		}
		if err := m.Respond(wire.Encode(reply)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := nc.Request(subjects.ToCoordinator("w2", subjects.WRRegister), wire.Encode(wire.RegisterRequest{
		ProtocolVersion: wire.Version, Worker: "w2", Instance: d.instance, Route: strings.Repeat("a", 26), PluginID: "p",
		Providers: []wire.Provider{{
			Name: "v", Driver: "double", Duplex: true,
			Capabilities: []wire.Capability{wire.CapDuplexCommandStream, wire.CapExecute},
		}},
		Verbs: []string{"bind", "release", "open", "close", "probe", "inventory"}, Slots: 4,
	}), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var reply wire.RegisterReply
	if err := json.Unmarshal(msg.Data, &reply); err != nil || reply.BeatMS == 0 {
		t.Fatalf("register: %s", msg.Data)
	}
	beat := func(seq uint64) {
		b := wire.Encode(wire.Beat{Instance: d.instance, Seq: seq, State: wire.WorkerReady})
		if err := nc.Publish(subjects.Heartbeat("w2"), b); err != nil {
			t.Error(err)
		}
	}
	beat(1)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for seq := uint64(2); ; seq++ {
			select {
			case <-tick.C:
				beat(seq)
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
	return d
}
