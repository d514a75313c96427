package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/subjects"
)

func drawFrame(t *rapid.T) (Frame, subjects.Dir) {
	f := Frame{
		Type:    rapid.SampledFrom([]FrameType{FrameStdin, FrameStdout, FrameStderr, FrameEOF, FrameExit, FrameReset}).Draw(t, "type"),
		Attach:  rapid.Uint32().Draw(t, "attach"),
		Epoch:   rapid.Uint64().Draw(t, "epoch"),
		Seq:     rapid.Uint64Min(1).Draw(t, "seq"),
		Payload: []byte{},
	}
	switch f.Type {
	case FrameEOF:
		f.Stream = rapid.SampledFrom([]Stream{Stdin, Stdout, Stderr}).Draw(t, "stream")
		f.Offset = rapid.Uint64Max(maxOffset).Draw(t, "total")
	case FrameExit, FrameReset:
		f.Payload = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "json")
	default:
		f.Stream = Stream(f.Type)
		f.Offset = rapid.Uint64Max(maxOffset).Draw(t, "offset")
		f.Payload = rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "payload")
	}
	return f, rapid.SampledFrom([]subjects.Dir{subjects.Up, subjects.Down}).Draw(t, "dir")
}

func drawKey(t *rapid.T) (k Key) {
	copy(k[:], rapid.SliceOfN(rapid.Byte(), KeySize, KeySize).Draw(t, "key"))
	return k
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, dir := drawFrame(t)
		fk := NewFrameKey(drawKey(t), dir)
		buf := fk.Seal(frameBuf(f.Payload), f)
		if !bytes.Equal(buf[HeaderSize:], f.Payload) {
			t.Fatal("Seal altered the payload")
		}
		before := bytes.Clone(buf)
		got, err := fk.Open(buf)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(f, got); d != "" {
			t.Fatal(d)
		}
		if !bytes.Equal(before, buf) {
			t.Fatal("Open altered the buffer")
		}
		if got.End() != f.Offset+uint64(len(f.Payload)) || cap(got.Payload) != len(got.Payload) {
			t.Fatal("End or the payload's capacity is wrong")
		}
	})
}

// TestFrameBitFlips: one bit changed anywhere is refused, and the buffer stays
// as it came.
func TestFrameBitFlips(t *testing.T) {
	f := Frame{Type: FrameStdout, Attach: 0, Epoch: 1, Seq: 7, Offset: 9}
	fk := NewFrameKey(goldenDown(), subjects.Down)
	good := fk.Seal(frameBuf([]byte("payload")), f)
	for bit := range len(good) * 8 {
		buf := bytes.Clone(good)
		buf[bit/8] ^= 1 << (bit % 8)
		before := bytes.Clone(buf)
		if _, err := fk.Open(buf); err == nil {
			t.Errorf("bit %d of byte %d changed and the frame was taken", bit%8, bit/8)
		}
		if !bytes.Equal(before, buf) {
			t.Errorf("bit %d of byte %d: a refused Open altered the buffer", bit%8, bit/8)
		}
	}
}

func TestFrameOfAnotherKeyDirectionOrSequence(t *testing.T) {
	secret := goldenSecret()
	f := Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 7}
	good := NewFrameKey(KeyUp(secret, 1), subjects.Up).Seal(frameBuf([]byte("x")), f)
	for name, fk := range map[string]*FrameKey{
		"K_up of the next attach": NewFrameKey(KeyUp(secret, 2), subjects.Up),
		"K_down":                  NewFrameKey(KeyDown(secret), subjects.Up),
		"the other direction":     NewFrameKey(KeyUp(secret, 1), subjects.Down),
	} {
		if _, err := fk.Open(bytes.Clone(good)); !errors.Is(err, ErrFrameTag) {
			t.Errorf("%s: %v; want %v", name, err, ErrFrameTag)
		}
	}
	moved := bytes.Clone(good)
	binary.BigEndian.PutUint64(moved[16:], 8)
	if _, err := NewFrameKey(KeyUp(secret, 1), subjects.Up).Open(moved); !errors.Is(err, ErrFrameTag) {
		t.Errorf("another sequence: %v; want %v", err, ErrFrameTag)
	}
}

func TestS030_FramesCutAtEachLength(t *testing.T) {
	fk := NewFrameKey(goldenUp(), subjects.Up)
	good := fk.Seal(frameBuf([]byte("payload")), Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 1})
	for n := range len(good) {
		if _, err := fk.Open(bytes.Clone(good[:n])); !errors.Is(err, ErrFrameSize) {
			t.Errorf("a frame cut at %d bytes: %v; want %v", n, err, ErrFrameSize)
		}
	}
	if _, err := fk.Open(append(bytes.Clone(good), 0)); !errors.Is(err, ErrFrameSize) {
		t.Errorf("a frame with a byte more: %v; want %v", err, ErrFrameSize)
	}
	if _, err := fk.Open(nil); !errors.Is(err, ErrFrameSize) {
		t.Errorf("no bytes: %v; want %v", err, ErrFrameSize)
	}
}

func TestS030_MalformedFrames(t *testing.T) {
	data := Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 1}
	eof := Frame{Type: FrameEOF, Stream: Stdout, Epoch: 1, Seq: 1, Offset: 9}
	exit := Frame{Type: FrameExit, Epoch: 1, Seq: 1}
	reset := Frame{Type: FrameReset, Epoch: 1, Seq: 1}
	for _, c := range []struct {
		name    string
		f       Frame
		payload string
		spoil   func(b []byte)
		want    error
	}{
		{"version 0", data, "x", func(b []byte) { b[0] = 0 }, ErrFrameVersion},
		{"version 2", data, "x", func(b []byte) { b[0] = 2 }, ErrFrameVersion},
		{"version 255", data, "x", func(b []byte) { b[0] = 255 }, ErrFrameVersion},
		{"type 0", data, "x", func(b []byte) { b[1] = 0 }, ErrFrameType},
		{"type 7", data, "x", func(b []byte) { b[1] = 7 }, ErrFrameType},
		{"type 255", data, "x", func(b []byte) { b[1] = 255 }, ErrFrameType},
		{"a stream in a data frame", data, "x", func(b []byte) { b[2] = 1 }, ErrFrameField},
		{"a flag", data, "x", func(b []byte) { b[3] = 1 }, ErrFrameField},
		{"sequence 0", data, "x", func(b []byte) { clear(b[16:24]) }, ErrFrameField},
		{"offset 2^63", data, "x", func(b []byte) { b[24] = 0x80 }, ErrFrameField},
		{"the largest offset and one", data, "x", func(b []byte) { binary.BigEndian.PutUint64(b[24:], maxOffset+1) }, ErrFrameField},
		{"length one less", data, "xy", func(b []byte) { b[35] = 1 }, ErrFrameSize},
		{"length one more", data, "xy", func(b []byte) { b[35] = 3 }, ErrFrameSize},
		{"length 2^32-1", data, "xy", func(b []byte) { binary.BigEndian.PutUint32(b[32:], 1<<32-1) }, ErrFrameSize},
		{"a reserved byte", data, "x", func(b []byte) { b[39] = 1 }, ErrFrameField},
		{"data of 0 bytes", data, "", func([]byte) {}, ErrFrameField},
		{"EOF with a payload", eof, "x", func([]byte) {}, ErrFrameField},
		{"EOF of no stream", eof, "", func(b []byte) { b[2] = 0 }, ErrFrameType},
		{"EOF of stream 4", eof, "", func(b []byte) { b[2] = 4 }, ErrFrameType},
		{"EXIT with a stream", exit, "{}", func(b []byte) { b[2] = 1 }, ErrFrameField},
		{"EXIT with an offset", exit, "{}", func(b []byte) { b[31] = 1 }, ErrFrameField},
		{"RESET with an offset", reset, "{}", func(b []byte) { b[31] = 1 }, ErrFrameField},
		{"a wrong tag", data, "x", func(b []byte) { b[40] ^= 1 }, ErrFrameTag},
	} {
		fk := NewFrameKey(goldenUp(), subjects.Up)
		buf := fk.Seal(frameBuf([]byte(c.payload)), c.f)
		c.spoil(buf)
		before := bytes.Clone(buf)
		if f, err := fk.Open(buf); err != c.want || f.Seq != 0 {
			t.Errorf("%s: %v; want %v and no frame", c.name, err, c.want)
		}
		if !bytes.Equal(before, buf) {
			t.Errorf("%s: Open altered the buffer", c.name)
		}
	}
}

func TestFramePayloadLimit(t *testing.T) {
	fk := NewFrameKey(goldenDown(), subjects.Down)
	for _, typ := range []FrameType{FrameStdout, FrameExit} {
		f := Frame{Type: typ, Epoch: 1, Seq: 1}
		if got, err := fk.Open(fk.Seal(make([]byte, MaxFrame), f)); err != nil || len(got.Payload) != MaxPayload {
			t.Errorf("type %d with %d bytes: %v", typ, MaxPayload, err)
		}
		if _, err := fk.Open(fk.Seal(make([]byte, MaxFrame+1), f)); err != ErrFrameSize {
			t.Errorf("type %d with one byte more: %v; want %v", typ, err, ErrFrameSize)
		}
	}
	last := Frame{Type: FrameStdout, Epoch: 1, Seq: 1, Offset: maxOffset}
	got, err := fk.Open(fk.Seal(make([]byte, MaxFrame), last))
	if err != nil || got.End() != 1<<63-1 {
		t.Errorf("the last offset: %v, end %d; want 2^63-1", err, got.End())
	}
}

func TestStreamNames(t *testing.T) {
	for s, want := range map[Stream]string{StreamNone: "none", Stdin: "stdin", Stdout: "stdout", Stderr: "stderr"} {
		if s.String() != want || s != StreamNone && Stream(s.Data()) != s {
			t.Errorf("stream %d is %q with frame type %d; want %q", uint8(s), s, s.Data(), want)
		}
	}
}

func TestSealAllocatesNothing(t *testing.T) {
	fk := NewFrameKey(goldenUp(), subjects.Up)
	buf := make([]byte, HeaderSize+4096)
	f := Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 1}
	if n := testing.AllocsPerRun(200, func() { fk.Seal(buf, f) }); n != 0 {
		t.Errorf("Seal allocates %v times; want 0", n)
	}
	if n := testing.AllocsPerRun(200, func() {
		if _, err := fk.Open(buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Open allocates %v times; want 0", n)
	}
}

func benchSizes(b *testing.B, run func(b *testing.B, fk *FrameKey, buf []byte)) {
	for _, size := range []int{1, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			fk := NewFrameKey(goldenUp(), subjects.Up)
			buf := fk.Seal(make([]byte, HeaderSize+size), Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 1})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			run(b, fk, buf)
		})
	}
}

func BenchmarkSeal(b *testing.B) {
	benchSizes(b, func(b *testing.B, fk *FrameKey, buf []byte) {
		for b.Loop() {
			fk.Seal(buf, Frame{Type: FrameStdin, Attach: 1, Epoch: 1, Seq: 1})
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	benchSizes(b, func(b *testing.B, fk *FrameKey, buf []byte) {
		for b.Loop() {
			if _, err := fk.Open(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
