package natstest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/internal/natstest"
)

func TestRestartKeepsAddressTokenAndStore(t *testing.T) {
	for _, inProcess := range []bool{false, true} {
		var opts []natstest.Option
		if inProcess {
			opts = append(opts, natstest.InProcessOnly())
		}
		s := natstest.Start(t, opts...)
		url, token := s.URL(), s.Token()
		back := make(chan struct{}, 4)
		nc := s.Connect(t, nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
		kv := bucket(t, nc)
		if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}

		s.Restart(t, true)
		wait(t, back)
		if s.URL() != url || s.Token() != token {
			t.Fatalf("after restart: %s %s, want %s %s", s.URL(), s.Token(), url, token)
		}
		e, err := kv.Get(t.Context(), "k")
		if err != nil || string(e.Value()) != "v" {
			t.Fatalf("kept store: %v, %v", e, err)
		}

		s.Restart(t, false)
		wait(t, back)
		if _, err := kv.Get(t.Context(), "k"); err == nil {
			t.Fatal("an emptied store still has the key")
		}
	}
}

func TestKillCutsConnections(t *testing.T) {
	s := natstest.Start(t)
	gone := make(chan struct{}, 1)
	nc := s.Connect(t, nats.DisconnectErrHandler(func(*nats.Conn, error) { gone <- struct{}{} }))
	s.Kill()
	wait(t, gone)
	if nc.IsConnected() {
		t.Fatal("still connected")
	}
	s.Kill() // a second one is harmless
}

func bucket(t *testing.T, nc *nats.Conn) jetstream.KeyValue {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing within 10 s")
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		natstest.Start(b).Kill()
	}
}
