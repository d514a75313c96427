package duplex_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// TestI4_NeverASilentEnd: a RESET, or an EXIT that came without the ends of the
// streams, gives readers what there is and then a typed error.
func TestI4_NeverASilentEnd(t *testing.T) {
	for _, typ := range []wire.FrameType{wire.FrameReset, wire.FrameExit} {
		synctest.Test(t, func(t *testing.T) {
			key := wire.Key{1}
			down := wire.NewFrameKey(key, subjects.Down)
			e := duplex.New(duplex.Config{Side: duplex.Client, Channel: uuid.UUID{1}, Epoch: 1, Link: sink{}})
			e.Start(duplex.Grant{Attach: 1, KeyUp: key, KeyDown: key})
			e.Frame(down.Seal(append(make([]byte, wire.HeaderSize), "some"...), wire.Frame{Type: wire.FrameStdout, Seq: 1, Epoch: 1}))
			end := wire.Encode(wire.Exit{Outcome: wire.Outcome{Kind: wire.WorkerDrained}, Totals: wire.Totals{Stdout: 5}})
			e.Frame(down.Seal(append(make([]byte, wire.HeaderSize), end...), wire.Frame{Type: typ, Seq: 2, Epoch: 1}))
			<-e.Done()
			got, err := drain(t.Context(), e, wire.Stdout)
			if string(got) != "some" || wire.CodeOf(err) != wire.CodeChannelEnded {
				t.Errorf("type %d: %q, %v; want the bytes and CHANNEL_ENDED", typ, got, err)
			}
			if _, err := e.NextChunk(t.Context()); err == nil || err == io.EOF {
				t.Errorf("type %d: merged reader got %v", typ, err)
			}
			if _, err := e.Peek(wire.Stderr); wire.CodeOf(err) != wire.CodeChannelEnded {
				t.Errorf("type %d: peek got %v", typ, err)
			}
			e.Close()
		})
	}
}

// TestReplaysChangeNothing: whoever may publish on the control subject can repeat
// old messages; they are not obeyed again and are no sign of life.
func TestReplaysChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, id := wire.Key{1}, uuid.UUID{1}
		obeyed := map[uint64]int{}
		e := duplex.New(duplex.Config{Side: duplex.Worker, Channel: id, Epoch: 1, Link: sink{},
			Request: func(r wire.Request) wire.Answer { obeyed[r.N]++; return wire.Answer{} }})
		e.Start(duplex.Grant{Attach: 1, KeyUp: key, KeyDown: key, Frames: 10})
		request := func(n uint64) []byte {
			b, err := wire.AppendRequest(nil, wire.ControlRequest, id, 1, wire.Encode(wire.Request{N: n, Verb: wire.VerbSignal, Signal: "USR1"}), key)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		for n := range uint64(66) {
			e.ControlMessage(request(n))
		}
		for n := range uint64(66) {
			e.ControlMessage(request(n))
		}
		for n := range uint64(66) {
			if want := min(n, 1); obeyed[n] != int(want) {
				t.Errorf("request %d was obeyed %d times", n, obeyed[n])
			}
		}
		probe := wire.State{Kind: wire.ControlProbe, Channel: id, Attach: 1, Counter: 1}
		old := probe.Append(nil, key)
		probe.Counter = 9
		e.ControlMessage(probe.Append(nil, key))
		heard := e.Heard()
		time.Sleep(time.Hour)
		e.ControlMessage(old)
		e.AnswerProbe(nil, old)
		if !e.Heard().Equal(heard) {
			t.Errorf("an old PROBE moved Heard by %s", e.Heard().Sub(heard))
		}
		e.Close()
	})
}
