package duplex

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// bench is a sender whose messages are collected.
type senderRig struct {
	sender
	out []outMsg
	now time.Time
}

func newSenderRig() *senderRig {
	r := &senderRig{now: time.Unix(1000, 0)}
	r.sender = sender{key: wire.NewFrameKey(wire.Key{1}, subjects.Down), frameLimit: FrameWindow,
		emit: func(m outMsg) { r.out = append(r.out, m) }}
	r.openStream(wire.Stdout, DefaultWindow, stdoutBudget)
	r.openStream(wire.Stderr, DefaultWindow, stderrBudget)
	return r
}

// took returns and forgets what was emitted, as frames.
func (r *senderRig) took(t *testing.T) (frames []wire.Frame, ids []uint64) {
	t.Helper()
	for _, m := range r.out {
		if m.id == 0 {
			continue
		}
		f, err := r.key.Open(bytes.Clone(m.payload))
		if err != nil {
			t.Fatal(err)
		}
		frames, ids = append(frames, f), append(ids, m.id)
	}
	r.out = nil
	return frames, ids
}

func TestSender_SmallWritesGatherWhileAFrameIsInFlight(t *testing.T) {
	r := newSenderRig()
	for range 100 {
		r.offer(r.now, wire.Stdout, []byte("x"))
	}
	f, ids := r.took(t)
	if len(f) != 1 || len(f[0].Payload) != 1 {
		t.Fatalf("%d frames before the ack; want the first byte alone, at once", len(f))
	}
	r.onStored(r.now, ids[0], 1)
	f, _ = r.took(t)
	if len(f) != 1 || len(f[0].Payload) != 99 || f[0].Offset != 1 {
		t.Fatalf("after the ack: %d frames; want one of 99 bytes", len(f))
	}
}

func TestSender_OnlyTheOldestIsRepeatedAndTheOthersFollowItsAck(t *testing.T) {
	r := newSenderRig()
	for range 3 {
		r.offer(r.now, wire.Stdout, make([]byte, wire.MaxPayload))
	}
	_, ids := r.took(t)
	if len(ids) != 3 {
		t.Fatalf("%d frames", len(ids))
	}
	for _, wait := range []time.Duration{250, 500, 1000, 2000, 4000, 5000, 5000} {
		r.now = r.now.Add(wait*time.Millisecond - 1)
		r.tick(r.now)
		if f, _ := r.took(t); len(f) != 0 {
			t.Fatalf("a repeat before %d ms", wait)
		}
		r.now = r.now.Add(1)
		r.tick(r.now)
		f, again := r.took(t)
		if len(f) != 1 || f[0].Seq != 1 {
			t.Fatalf("after %d ms: %d frames; want frame 1 alone", wait, len(f))
		}
		ids[0] = again[0]
	}
	r.offer(r.now, wire.Stderr, []byte("new"))
	if f, _ := r.took(t); len(f) != 0 {
		t.Fatal("a new frame went while the log was silent")
	}
	r.onStored(r.now, ids[0], 1)
	f, _ := r.took(t)
	if len(f) < 2 || f[0].Seq != 2 || f[1].Seq != 3 {
		t.Fatalf("after the ack of the oldest: %d frames; want 2 and 3 again", len(f))
	}
}

func TestSender_LogThatStartsAgainGetsEverythingUnacknowledged(t *testing.T) {
	r := newSenderRig()
	for i := range 3 {
		r.offer(r.now, wire.Stdout, make([]byte, wire.MaxPayload))
		_, ids := r.took(t)
		r.onStored(r.now, ids[0], uint64(100+i))
	}
	r.offer(r.now, wire.Stdout, []byte("after the loss"))
	_, ids := r.took(t)
	r.onStored(r.now, ids[0], 1)
	f, _ := r.took(t)
	if len(f) != 4 || f[0].Seq != 1 || f[3].Seq != 4 {
		t.Fatalf("%d frames stored again; want 1 to 4 in order", len(f))
	}
}

func TestSender_BudgetsPerStreamAndReservedFrames(t *testing.T) {
	r := newSenderRig()
	store := func() {
		for {
			_, ids := r.took(t)
			if len(ids) == 0 {
				return
			}
			for _, id := range ids {
				r.onStored(r.now, id, id)
			}
		}
	}
	for range 100 {
		r.offer(r.now, wire.Stdout, []byte("x"))
		store()
		r.offer(r.now, wire.Stderr, []byte("y"))
		store()
	}
	if r.streams[wire.Stdout].frames != stdoutBudget || r.streams[wire.Stderr].frames != stderrBudget {
		t.Fatalf("in flight: %d and %d frames; want %d and %d",
			r.streams[wire.Stdout].frames, r.streams[wire.Stderr].frames, stdoutBudget, stderrBudget)
	}
	st := wire.State{Counter: 1, FrameLimit: FrameWindow}
	st.Streams[wire.Stderr] = wire.Credit{Acked: 16, Limit: DefaultWindow}
	r.onState(r.now, &st)
	if got := r.streams[wire.Stderr].frames; got != 0 {
		t.Errorf("stderr has %d frames in flight after all its bytes were acknowledged", got)
	}
	r.finish(r.now, []byte("{}"))
	r.closeStream(r.now, wire.Stdout)
	r.closeStream(r.now, wire.Stderr)
	store()
	if r.exit == nil {
		t.Error("EXIT went before the bytes gathered for want of frame credit")
	}
	st = wire.State{Counter: 2, FrameLimit: 200, AckedSeq: r.lastSeq}
	r.onState(r.now, &st)
	store()
	if r.exit != nil {
		t.Error("EXIT still waits although there is credit")
	}
}

func TestSender_StatesThatAreOldOrImpossible(t *testing.T) {
	r := newSenderRig()
	r.offer(r.now, wire.Stdout, []byte("abc"))
	for name, st := range map[string]wire.State{
		"sequence never sent": {Counter: 5, AckedSeq: 2},
		"bytes never sent":    {Counter: 5, Streams: [4]wire.Credit{wire.Stdout: {Acked: 4}}},
	} {
		if r.onState(r.now, &st) {
			t.Errorf("%s was believed", name)
		}
	}
	if !r.onState(r.now, &wire.State{Counter: 3, FrameLimit: 100}) || r.frameLimit != 100 {
		t.Error("an honest state was not taken")
	}
	if !r.onState(r.now, &wire.State{Counter: 2, FrameLimit: 900}) || r.frameLimit != 100 {
		t.Error("an older state was obeyed")
	}
	if r.onState(r.now, &wire.State{Counter: 9, FrameLimit: 1}); r.frameLimit != 100 {
		t.Error("a credit went backwards")
	}
}

func TestSender_ProbesFrom200msTo5s(t *testing.T) {
	r := newSenderRig()
	r.offer(r.now, wire.Stdout, []byte("x"))
	_, ids := r.took(t)
	r.onStored(r.now, ids[0], 1)
	for _, wait := range []time.Duration{200, 400, 800, 1600, 3200, 5000, 5000} {
		r.now = r.now.Add(wait*time.Millisecond - 1)
		if r.tick(r.now) {
			t.Fatalf("a probe before %d ms", wait)
		}
		r.now = r.now.Add(1)
		if !r.tick(r.now) {
			t.Fatalf("no probe after %d ms", wait)
		}
	}
	r.onState(r.now, &wire.State{Counter: 1, AckedSeq: 1, FrameLimit: 57})
	if !r.next().IsZero() {
		t.Error("an idle sender has a timer")
	}
}

// TestSender_OfferNeverPassesCredit: whatever is offered and granted, what is in
// frames stays within the limit and what is taken is what was offered, in order.
func TestSender_OfferNeverPassesCredit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newSenderRig()
		limit, frames := uint64(rapid.IntRange(1, 5000).Draw(rt, "limit")), uint64(8)
		r.streams[wire.Stdout].limit, r.frameLimit = limit, frames
		var want, got []byte
		next := byte(0)
		for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 2).Draw(rt, "step") {
			case 0:
				p := make([]byte, rapid.IntRange(1, 9000).Draw(rt, "len"))
				for i := range p {
					p[i] = next
					next++
				}
				n := r.offer(r.now, wire.Stdout, p)
				want = append(want, p[:n]...)
				next -= byte(len(p) - n)
			case 1:
				limit += uint64(rapid.IntRange(0, 9000).Draw(rt, "more"))
				frames += uint64(rapid.IntRange(0, 3).Draw(rt, "frames"))
				st := wire.State{Counter: uint64(i + 1), FrameLimit: frames}
				st.Streams[wire.Stdout] = wire.Credit{Limit: limit}
				r.onState(r.now, &st)
			case 2:
				if n := len(r.unstored); n > 0 {
					r.onStored(r.now, r.unstored[0].mark, r.unstored[0].mark)
				}
			}
			fs, _ := r.took(t)
			for _, f := range fs {
				if f.End() > limit || f.Seq > frames {
					rt.Fatalf("frame %d ends at %d with limit %d and frame limit %d", f.Seq, f.End(), limit, frames)
				}
				if f.Offset == uint64(len(got)) {
					got = append(got, f.Payload...)
				}
			}
		}
		if !bytes.HasPrefix(want, got) {
			rt.Fatal("the frames are not what was offered")
		}
	})
}
