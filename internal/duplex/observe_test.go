package duplex_test

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// TestC035_AnObserverIsToldWhatItMissed: what it reads and what it is told that
// it missed add up to the whole, for a slow reader and for frames that never came.
func TestC035_AnObserverIsToldWhatItMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := wire.Key{5}
		o := duplex.NewObserver(key, 1)
		fk := wire.NewFrameKey(key, subjects.Down)
		offset := map[wire.Stream]uint64{}
		send := func(seq uint64, st wire.Stream, n int, lost bool) {
			buf := make([]byte, wire.HeaderSize+n)
			for i := range n {
				buf[wire.HeaderSize+i] = byte(offset[st]) + byte(i)
			}
			f := wire.Frame{Type: st.Data(), Epoch: 1, Seq: seq, Offset: offset[st]}
			offset[st] += uint64(n)
			if !lost {
				o.Frame(fk.Seal(buf, f))
			}
		}
		seq := uint64(0)
		for i := range 300 { // 300 frames of 10,000 bytes and nobody reads: far over the buffer
			seq++
			send(seq, wire.Stdout+wire.Stream(i%2), 10_000, i%50 == 20)
		}
		seq++
		exit := append(make([]byte, wire.HeaderSize), wire.Encode(wire.Exit{
			Outcome: wire.ExitedWith(0), Totals: wire.Totals{Stdout: offset[wire.Stdout], Stderr: offset[wire.Stderr] + 77},
		})...)
		o.Frame(fk.Seal(exit, wire.Frame{Type: wire.FrameExit, Epoch: 1, Seq: seq}))
		pos := map[wire.Stream]uint64{}
		read := uint64(0)
		for {
			e, err := o.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			pos[e.Stream] += e.Missed
			for i, b := range e.Data {
				if b != byte(pos[e.Stream]/10_000*10_000)+byte((pos[e.Stream]+uint64(i))%10_000) {
					t.Fatalf("%v at %d: wrong byte", e.Stream, pos[e.Stream]+uint64(i))
				}
			}
			pos[e.Stream] += uint64(len(e.Data))
			read += uint64(len(e.Data))
		}
		if pos[wire.Stdout] != offset[wire.Stdout] || pos[wire.Stderr] != offset[wire.Stderr]+77 {
			t.Errorf("read and missed add up to %v; want %v", pos, offset)
		}
		if read > 1<<20 || read < 1<<19 {
			t.Errorf("%d bytes were kept for a reader that did not read", read)
		}
		if x := o.Exit(); x == nil || !x.Outcome.Success() {
			t.Errorf("exit %+v", x)
		}
		o.Close(io.ErrClosedPipe)
	})
}

// TestObserver_ForeignFramesAreNotShown: only frames under K_down count.
func TestObserver_ForeignFramesAreNotShown(t *testing.T) {
	o := duplex.NewObserver(wire.Key{5}, 1)
	for _, k := range []*wire.FrameKey{
		wire.NewFrameKey(wire.Key{6}, subjects.Down), wire.NewFrameKey(wire.Key{5}, subjects.Up),
	} {
		o.Frame(k.Seal(append(make([]byte, wire.HeaderSize), 'x'), wire.Frame{Type: wire.FrameStdout, Epoch: 1, Seq: 1}))
	}
	o.Close(io.ErrClosedPipe)
	if e, err := o.Next(t.Context()); err != io.ErrClosedPipe {
		t.Errorf("%+v, %v", e, err)
	}
}
