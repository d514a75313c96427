package channel_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/wire"
)

var (
	t0   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	id   = uuid.MustParse("6f1c2d3e-4a5b-4c6d-8e7f-001122334455")
	home = channel.Home{Worker: "w", Instance: "i", Route: "r", Epoch: wire.Epoch{Incarnation: "inc", N: 3}}
	body = []byte(`{"mode":"duplex","argv":["cat"]}`)
)

const leaseID = "0f1c2d3e-4a5b-5c6d-8e7f-001122334455"

func opening() channel.Record {
	return channel.New(t0, "acme", leaseID, id, wire.ModeDuplex, body, home, bytes.Repeat([]byte{7}, wire.SecretSize))
}

func TestC026_SameBodySameChannel(t *testing.T) {
	r := opening()
	if err := r.Matches(body, wire.ModeDuplex); err != nil {
		t.Errorf("the same open: %v", err)
	}
	if err := r.Matches(append(body, ' '), wire.ModeDuplex); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("other body: %v, want CONFLICT", err)
	}
	if err := r.Matches(body, wire.ModeExecute); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("other mode: %v, want CONFLICT", err)
	}
	open, err := r.WithOpened(t0, wire.UpCredit{Stdin: 5, FrameLimit: 6})
	if err != nil {
		t.Fatal(err)
	}
	again, err := open.WithOpened(t0.Add(time.Hour), wire.UpCredit{})
	if err != nil || cmp.Diff(open, again) != "" {
		t.Errorf("opened twice: %v, %s", err, cmp.Diff(open, again))
	}
	up, down := wire.KeyUp(r.Secret, 1), wire.KeyDown(r.Secret)
	want := wire.OpenReply{
		Channel: id, Attach: 1, Route: "r", Instance: "i", Epoch: 3, KeyUp: up[:], KeyDown: down[:], Credit: wire.UpCredit{Stdin: 5, FrameLimit: 6},
	}
	if d := cmp.Diff(want, open.Reply()); d != "" {
		t.Error(d)
	}
}

func TestFirstEndWins(t *testing.T) {
	open, _ := opening().WithOpened(t0, wire.UpCredit{})
	totals := &wire.Totals{Stdout: 10}
	ended, changed := open.WithEnd(t0.Add(time.Second), channel.ByWorker, wire.ExitedWith(3), totals)
	if !changed || ended.State != channel.Ended {
		t.Fatalf("%s, changed %t", ended.State, changed)
	}
	again, changed := ended.WithEnd(t0.Add(time.Minute), channel.ByCoordinator, wire.Outcome{Kind: wire.WorkerLost}, nil)
	if changed || cmp.Diff(ended, again) != "" || again.Outcome().String() != "exited(3)" {
		t.Errorf("a second end: changed %t, outcome %s", changed, again.Outcome())
	}
	if open.End != nil || open.State != channel.Open {
		t.Error("the end changed the record it was made from")
	}
	if _, err := ended.WithOpened(t0, wire.UpCredit{}); wire.CodeOf(err) != wire.CodeChannelEnded {
		t.Errorf("opened after its end: %v", err)
	}
	if o := ended.Reply().Outcome; o == nil || o.String() != "exited(3)" {
		t.Errorf("a repeated open is told %v", o)
	}
	at := t0.Add(time.Second)
	code := 3
	want := wire.Channel{
		ID: id, Lease: leaseID, Route: "r", Mode: wire.ModeDuplex, State: "ended", Attach: 1, Totals: totals,
		Outcome: &wire.Outcome{Kind: wire.Exited, Code: &code}, EndedBy: "worker", CreatedAt: t0, EndedAt: &at,
	}
	if d := cmp.Diff(want, ended.View()); d != "" {
		t.Error(d)
	}
}

func TestC030_AttachNumbersOnlyRise(t *testing.T) {
	r, err := opening().WithAttach(0)
	if err != nil || r.Attach != 2 {
		t.Fatalf("the second attach is %d, %v", r.Attach, err)
	}
	for _, c := range []struct{ held, want uint32 }{{1, 3}, {2, 3}, {7, 8}} {
		if n, err := r.WithAttach(c.held); err != nil || n.Attach != c.want {
			t.Errorf("after %d held: %d, %v; want %d", c.held, n.Attach, err, c.want)
		}
	}
	if n, err := r.WithAttach(math.MaxUint32); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("after the last number: %d, %v", n.Attach, err)
	}
	exec := channel.New(t0, "acme", leaseID, id, wire.ModeExecute, body, home, bytes.Repeat([]byte{7}, wire.SecretSize))
	if _, err := exec.WithAttach(0); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("an execution: %v", err)
	}
}

func TestWhoHoldsAndWhoReads(t *testing.T) {
	r, _ := opening().WithAttach(0)
	up, down := wire.KeyUp(r.Secret, 2), wire.KeyDown(r.Secret)
	reading := wire.AttachReply{Channel: id, Route: "r", Epoch: 3, KeyDown: down[:]}
	if d := cmp.Diff(reading, r.Reading()); d != "" {
		t.Error(d)
	}
	held := reading
	held.Attach, held.Instance, held.KeyUp = 2, "i", up[:]
	held.Up, held.Down = wire.UpPosition{NextSeq: 4}, wire.DownPosition{LastSeq: 5}
	if d := cmp.Diff(held, r.Held(held.Up, held.Down)); d != "" {
		t.Error(d)
	}
	ended, _ := r.WithEnd(t0, channel.ByWorker, wire.ExitedWith(3), nil)
	if o := ended.Reading().Outcome; o == nil || o.String() != "exited(3)" {
		t.Errorf("a reader of what has ended is told %v", o)
	}
	// Who holds it while its worker still has bytes learns the end from EXIT.
	if o := ended.Held(held.Up, held.Down).Outcome; o != nil {
		t.Errorf("the holder is told %v", o)
	}
}

func TestNoOutcomeIsUnknown(t *testing.T) {
	if k := opening().Outcome().Kind; k != wire.Unknown {
		t.Errorf("before the end: %s", k)
	}
	ended, _ := opening().WithEnd(t0, channel.ByCoordinator, wire.Outcome{}, nil)
	if o := ended.Outcome(); o.Kind != wire.Unknown || o.Success() {
		t.Errorf("ended with nothing: %s", o)
	}
}

func TestViewHasNoSecret(t *testing.T) {
	if s := string(wire.Encode(opening().View())); strings.Contains(s, "BwcHBw") || strings.Contains(s, `"w"`) {
		t.Errorf("the tenant sees %s", s)
	}
}

func TestStoredAndRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := opening()
		if rapid.Bool().Draw(t, "open") {
			r, _ = r.WithOpened(t0.Add(time.Second), wire.UpCredit{Stdin: rapid.Uint64().Draw(t, "stdin")})
		}
		if rapid.Bool().Draw(t, "end") {
			o := wire.Outcome{Kind: rapid.SampledFrom([]wire.OutcomeKind{wire.Exited, wire.WorkerLost, ""}).Draw(t, "kind"), Bytes: rapid.Int64().Draw(t, "bytes")}
			r, _ = r.WithEnd(t0.Add(time.Minute), channel.ByCoordinator, o, &wire.Totals{Stderr: 1})
		}
		back, err := channel.Decode(r.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(r, back); d != "" {
			t.Fatal(d)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	good := string(opening().Encode())
	for name, bad := range map[string]string{
		"empty":         "",
		"trailing":      good + " 1",
		"unknown field": strings.Replace(good, `{`, `{"more":1,`, 1),
		"state":         strings.Replace(good, `"opening"`, `"shut"`, 1),
		"ended, no end": strings.Replace(good, `"opening"`, `"ended"`, 1),
		"mode":          strings.Replace(good, `"duplex"`, `"half"`, 1),
		"short secret":  strings.Replace(good, `"secret":"BwcH`, `"secret":"`, 1),
		"no hash":       strings.Replace(good, `"bodyHash":"`, `"bodyHash":"AAAA`, 1),
		"attach":        strings.Replace(good, `"attach":1`, `"attach":0`, 1),
		"tenant":        strings.Replace(good, `"acme"`, `"a.b"`, 1),
		"lease":         strings.Replace(good, leaseID, strings.ToUpper(leaseID), 1),
		"channel":       strings.Replace(good, "-4c6d-", "-5c6d-", 1),
		"worker":        strings.Replace(good, `"worker":"w"`, `"worker":""`, 1),
	} {
		if bad == good {
			t.Errorf("%s: the test changes nothing", name)
		}
		if _, err := channel.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(opening().Encode())
	ended, _ := opening().WithEnd(t0, channel.ByWorker, wire.SignaledBy("KILL", true), &wire.Totals{})
	f.Add(ended.Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := channel.Decode(data)
		if err != nil {
			return
		}
		_, _ = r.View(), r.Reply()
		again, err := channel.Decode(r.Encode())
		if err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		if string(again.Encode()) != string(r.Encode()) {
			t.Fatal("encoding is not stable")
		}
	})
}
