package duplex_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// sink is a link that drops everything.
type sink struct{}

func (sink) Store(uint64, []byte) error { return nil }
func (sink) Control([]byte) error       { return nil }

// FuzzEnd gives both ends arbitrary frames and control messages, raw and under
// a right tag: nothing panics, and what is not honest is never delivered.
func FuzzEnd(f *testing.F) {
	key := wire.Key{1}
	id := uuid.UUID{1}
	st := wire.State{Kind: wire.ControlProbe, Channel: id, Attach: 1, Counter: 1}
	f.Add(st.Append(nil, key), uint8(0))
	f.Add([]byte{byte(wire.ControlFrame), 1}, uint8(1))
	req, _ := wire.AppendRequest(nil, wire.ControlRequest, id, 1, []byte(`{"n":0,"verb":"repair","from":1,"to":9}`), key)
	f.Add(req, uint8(0))
	f.Add([]byte(`{"n":1,"verb":"signal","signal":"INT"}`), uint8(2))
	f.Add(bytes.Repeat([]byte{7}, wire.HeaderSize+4), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		for _, side := range []duplex.Side{duplex.Client, duplex.Worker} {
			e := duplex.New(duplex.Config{Side: side, Channel: id, Epoch: 1, Link: sink{}})
			e.Start(duplex.Grant{Attach: 1, KeyUp: key, KeyDown: key, Credit: [4]uint64{0, 100, 100, 100}, Frames: 10})
			_, _ = e.Write(t.Context(), map[duplex.Side]wire.Stream{duplex.Client: wire.Stdin, duplex.Worker: wire.Stdout}[side], []byte("x"))
			switch how % 4 {
			case 0:
				e.ControlMessage(bytes.Clone(b))
			case 1:
				e.Frame(bytes.Clone(b))
			case 2: // a request that is tagged right
				if m, err := wire.AppendRequest(nil, wire.ControlRequest, id, 1, b, key); err == nil {
					e.ControlMessage(m)
				}
			case 3: // any header that is tagged right, so that the receiver's rules are reached
				if len(b) > wire.HeaderSize {
					if fr, err := wire.DecodeFrame(b); err == nil {
						for _, dir := range []subjects.Dir{subjects.Up, subjects.Down} {
							buf := append(make([]byte, wire.HeaderSize), fr.Payload...)
							e.Frame(wire.NewFrameKey(key, dir).Seal(buf, fr))
						}
					}
				}
			}
			_ = e.AnswerProbe(nil, b)
			e.Stored(uint64(how), 1)
			e.Close()
		}
	})
}
