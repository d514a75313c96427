package wire

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func drawState(t *rapid.T) State {
	s := State{
		Kind:       rapid.SampledFrom([]ControlKind{ControlCredit, ControlProbe, ControlState}).Draw(t, "kind"),
		Attach:     rapid.Uint32().Draw(t, "attach"),
		Counter:    rapid.Uint64().Draw(t, "counter"),
		AckedSeq:   rapid.Uint64().Draw(t, "acked"),
		FrameLimit: rapid.Uint64().Draw(t, "limit"),
		LastSeq:    rapid.Uint64().Draw(t, "last"),
		Written:    rapid.Uint64().Draw(t, "written"),
	}
	copy(s.Channel[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "channel"))
	for i := Stdin; i <= Stderr; i++ {
		s.Streams[i] = Credit{Acked: rapid.Uint64().Draw(t, "a"), Limit: rapid.Uint64().Draw(t, "l")}
	}
	return s
}

func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, k := drawState(t), drawKey(t)
		b := s.Append([]byte("before"), k)[6:]
		if len(b) != StateSize {
			t.Fatalf("%d bytes; want %d", len(b), StateSize)
		}
		got, err := DecodeState(b, k)
		if d := cmp.Diff(s, got); err != nil || d != "" {
			t.Fatalf("%v\n%s", err, d)
		}
		id, attach, err := PeekChannel(b)
		if err != nil || id != s.Channel || attach != s.Attach {
			t.Fatalf("PeekChannel: %v %d %v", id, attach, err)
		}
	})
}

// decoder is one decoder with a message that it takes.
type decoder struct {
	name   string
	good   []byte
	decode func(b []byte, k Key) error
	kinds  []ControlKind // that it takes
}

func decoders(t testing.TB) []decoder {
	t.Helper()
	k, ch := goldenUp(), goldenChannel()
	state := State{Kind: ControlProbe, Channel: ch, Attach: 1, Counter: 1}
	request, err := AppendRequest(nil, ControlRequest, ch, 1, []byte(`{"n":1,"verb":"stop"}`), k)
	if err != nil {
		t.Fatal(err)
	}
	return []decoder{
		{"State", state.Append(nil, k), func(b []byte, k Key) error { _, err := DecodeState(b, k); return err },
			[]ControlKind{ControlCredit, ControlProbe, ControlState}},
		{"Request", request, func(b []byte, k Key) error { _, err := DecodeRequest(b, k); return err },
			[]ControlKind{ControlRequest, ControlAnswer}},
		{"Fenced", AppendFenced(nil, ch, 1, k), func(b []byte, k Key) error { _, err := DecodeFenced(b, k); return err },
			[]ControlKind{ControlFenced}},
		{"StdinClosed", AppendStdinClosed(nil, ch, 1, 2, 3, k), func(b []byte, k Key) error { _, err := DecodeStdinClosed(b, k); return err },
			[]ControlKind{ControlStdinClosed}},
	}
}

func TestControlValues(t *testing.T) {
	k, ch := goldenUp(), goldenChannel()
	if attach, err := DecodeFenced(AppendFenced(nil, ch, 1<<32-1, k), k); err != nil || attach != 1<<32-1 {
		t.Errorf("FENCED: %d, %v", attach, err)
	}
	if taken, err := DecodeStdinClosed(AppendStdinClosed(nil, ch, 1, 7, 1<<64-1, k), k); err != nil || taken != 1<<64-1 {
		t.Errorf("STDIN_CLOSED: %d, %v", taken, err)
	}
	gone := AppendGone(nil, ch)
	if id, attach, err := PeekChannel(gone); err != nil || id != ch || attach != 0 || len(gone) != GoneSize {
		t.Errorf("GONE: %v %d %v", id, attach, err)
	}
	if _, _, err := PeekChannel(gone[:GoneSize-1]); !errors.Is(err, ErrControlSize) {
		t.Errorf("PeekChannel of a short message: %v", err)
	}
}

// TestControlRefusals: one bit changed anywhere, another key, another size and
// another kind are refused by each decoder.
func TestControlRefusals(t *testing.T) {
	other := KeyUp(goldenSecret(), 2)
	for _, d := range decoders(t) {
		if err := d.decode(d.good, goldenUp()); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if err := d.decode(d.good, other); !errors.Is(err, ErrControlTag) {
			t.Errorf("%s with another key: %v; want %v", d.name, err, ErrControlTag)
		}
		for bit := range len(d.good) * 8 {
			b := bytes.Clone(d.good)
			b[bit/8] ^= 1 << (bit % 8)
			if d.decode(b, goldenUp()) == nil {
				t.Errorf("%s: bit %d of byte %d changed and it was taken", d.name, bit%8, bit/8)
			}
		}
		for n := range len(d.good) {
			if d.decode(d.good[:n], goldenUp()) == nil {
				t.Errorf("%s: taken when cut at %d bytes", d.name, n)
			}
		}
		if d.decode(append(bytes.Clone(d.good), 0), goldenUp()) == nil {
			t.Errorf("%s: taken with a byte more", d.name)
		}
		for kind := range ControlKind(12) {
			b := bytes.Clone(d.good)
			b[0] = byte(kind)
			err := d.decode(b, goldenUp())
			if taken := slices.Contains(d.kinds, kind); taken && kind != ControlKind(d.good[0]) && !errors.Is(err, ErrControlTag) {
				t.Errorf("%s as kind %d: %v; want %v, for the tag covers the kind", d.name, kind, err, ErrControlTag)
			} else if !taken && !errors.Is(err, ErrControlKind) && !errors.Is(err, ErrControlSize) {
				t.Errorf("%s as kind %d: %v", d.name, kind, err)
			}
		}
	}
}

func TestS031_RequestOf65536BytesAndOneMore(t *testing.T) {
	k := goldenUp()
	body := bytes.Repeat([]byte("x"), MaxRequest-requestHeader)
	full, err := AppendRequest(nil, ControlRequest, goldenChannel(), 1, body, k)
	if err != nil || len(full) != 65536 {
		t.Fatalf("%d bytes, %v; want 65536", len(full), err)
	}
	if got, err := DecodeRequest(full, k); err != nil || !bytes.Equal(got, body) {
		t.Errorf("a request of 65536 bytes: %v", err)
	}
	if b, err := AppendRequest(nil, ControlRequest, goldenChannel(), 1, append(body, 'x'), k); CodeOf(err) != CodePayloadTooLarge || b != nil {
		t.Errorf("a request of 65537 bytes: %v; want %s before it leaves", err, CodePayloadTooLarge)
	}
	if _, err := DecodeRequest(append(full, 'x'), k); !errors.Is(err, ErrControlSize) {
		t.Errorf("a raw request of 65537 bytes: %v; want %v", err, ErrControlSize)
	}
	if empty, err := AppendRequest(nil, ControlAnswer, goldenChannel(), 1, nil, k); err != nil {
		t.Error(err)
	} else if got, err := DecodeRequest(empty, k); err != nil || len(got) != 0 {
		t.Errorf("an empty body: %q, %v", got, err)
	}
}

func TestSplitKeepalive(t *testing.T) {
	k, ch := goldenUp(), goldenChannel()
	probe := State{Kind: ControlProbe, Channel: ch, Attach: 1}
	state := State{Kind: ControlState, Channel: ch, Attach: 1}
	parts := [][]byte{
		state.Append(nil, k), AppendStdinClosed(nil, ch, 1, 2, 3, k), AppendGone(nil, uuid.New()),
		AppendFenced(nil, ch, 1, k), probe.Append(nil, k), AppendGone(nil, uuid.New()),
	}
	rest := slices.Concat(parts...)
	for i, want := range parts {
		msg, next, err := SplitKeepalive(rest)
		if err != nil || !bytes.Equal(msg, want) || cap(msg) != len(msg) {
			t.Fatalf("part %d: %x, %v; want %x", i, msg, err, want)
		}
		rest = next
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes are left", len(rest))
	}
	if _, _, err := SplitKeepalive(nil); !errors.Is(err, ErrControlSize) {
		t.Errorf("nothing: %v", err)
	}
	for _, part := range parts {
		for n := 1; n < len(part); n++ {
			if msg, _, err := SplitKeepalive(part[:n]); !errors.Is(err, ErrControlSize) || msg != nil {
				t.Errorf("kind %d cut at %d bytes: %v; want %v", part[0], n, err, ErrControlSize)
			}
		}
	}
	for _, kind := range []ControlKind{0, ControlFrame, ControlCredit, ControlRequest, ControlAnswer, 10, 255} {
		b := make([]byte, MaxRequest)
		b[0] = byte(kind)
		if _, _, err := SplitKeepalive(b); !errors.Is(err, ErrControlKind) {
			t.Errorf("kind %d in a keepalive: %v; want %v", kind, err, ErrControlKind)
		}
	}
}

func TestKeepaliveFitsOneMessage(t *testing.T) {
	if n := KeepaliveMax * StateSize; n > 64<<10 {
		t.Errorf("a full keepalive is %d bytes; a message has at most 65536", n)
	}
}
