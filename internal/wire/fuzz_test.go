package wire

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-fabric/weft/internal/subjects"
)

// seed adds every golden file whose name begins with one of the prefixes.
func seed(f *testing.F, prefixes ...string) {
	f.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", "golden"))
	if err != nil {
		f.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".hex")
		for _, p := range prefixes {
			if ok && strings.HasPrefix(name, p) {
				f.Add(readGolden(f, name))
				n++
			}
		}
	}
	if n == 0 {
		f.Fatalf("no golden file begins with %v", prefixes)
	}
}

// FuzzDecodeFrame: what is decoded is within its bounds and, sealed again, has
// the same bytes but for the tag.
func FuzzDecodeFrame(f *testing.F) {
	seed(f, "frame_")
	fk := NewFrameKey(goldenUp(), subjects.Up)
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, err := DecodeFrame(data)
		if err != nil {
			return
		}
		if len(fr.Payload) > MaxPayload || fr.Seq == 0 || fr.End() < fr.Offset || fr.End() > 1<<63-1 {
			t.Fatalf("out of bounds: %+v", fr)
		}
		again := fk.Seal(frameBuf(fr.Payload), fr)
		copy(again[tagOffset:HeaderSize], data[tagOffset:HeaderSize])
		if !bytes.Equal(again, data) {
			t.Fatalf("re-encodes as %x; want %x", again, data)
		}
	})
}

// FuzzOpenFrame: Open leaves the buffer as it was, and takes only what Seal
// makes of the same frame.
func FuzzOpenFrame(f *testing.F) {
	seed(f, "frame_")
	fk := NewFrameKey(goldenDown(), subjects.Down)
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		fr, err := fk.Open(data)
		if !bytes.Equal(before, data) {
			t.Fatal("Open altered the buffer")
		}
		if err != nil {
			return
		}
		if again := fk.Seal(frameBuf(fr.Payload), fr); !bytes.Equal(again, data) {
			t.Fatalf("re-seals as %x; want %x", again, data)
		}
	})
}

// FuzzControl: every decoder on every input, once with its tag made right so
// that what is behind the check is reached; what is taken re-encodes.
func FuzzControl(f *testing.F) {
	seed(f, "control_")
	k := goldenUp()
	f.Fuzz(func(t *testing.T, data []byte) {
		if id, _, err := PeekChannel(data); err == nil && !bytes.Equal(id[:], data[1:17]) {
			t.Fatal("PeekChannel names another channel")
		}
		for _, b := range [][]byte{data, retag(data, len(data)-TagSize, k), retag(data, requestHeader-TagSize, k)} {
			before := bytes.Clone(b)
			checkControl(t, b, k)
			if !bytes.Equal(before, b) {
				t.Fatal("a decoder altered the message")
			}
		}
	})
}

// retag puts the right tag at position at.
func retag(data []byte, at int, k Key) []byte {
	b := bytes.Clone(data)
	if at < 0 || at+TagSize > len(b) {
		return b
	}
	tag := k.mac(b[:at], b[at+TagSize:])
	copy(b[at:], tag[:])
	return b
}

func checkControl(t *testing.T, b []byte, k Key) {
	if s, err := DecodeState(b, k); err == nil && !bytes.Equal(s.Append(nil, k), b) {
		t.Fatal("a state does not re-encode")
	}
	if attach, err := DecodeFenced(b, k); err == nil {
		id, _, _ := PeekChannel(b)
		if !bytes.Equal(AppendFenced(nil, id, attach, k), b) {
			t.Fatal("FENCED does not re-encode")
		}
	}
	if taken, err := DecodeStdinClosed(b, k); err == nil {
		id, attach, _ := PeekChannel(b)
		counter := uint64(0)
		for _, c := range b[21:29] {
			counter = counter<<8 | uint64(c)
		}
		if !bytes.Equal(AppendStdinClosed(nil, id, attach, counter, taken, k), b) {
			t.Fatal("STDIN_CLOSED does not re-encode")
		}
	}
	if body, err := DecodeRequest(b, k); err == nil {
		id, attach, _ := PeekChannel(b)
		again, err := AppendRequest(nil, ControlKind(b[0]), id, attach, body, k)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("a request does not re-encode: %v", err)
		}
	}
}

// FuzzSplitKeepalive: the parts are the input, cut without loss.
func FuzzSplitKeepalive(f *testing.F) {
	seed(f, "keepalive_", "control_")
	f.Fuzz(func(t *testing.T, data []byte) {
		var joined []byte
		rest := data
		for len(rest) > 0 {
			msg, next, err := SplitKeepalive(rest)
			if err != nil {
				if !errors.Is(err, ErrControlKind) && !errors.Is(err, ErrControlSize) {
					t.Fatal(err)
				}
				return
			}
			if len(msg) == 0 || len(msg)+len(next) != len(rest) {
				t.Fatal("no progress, or bytes lost")
			}
			joined = append(joined, msg...)
			rest = next
		}
		if !bytes.Equal(joined, data) {
			t.Fatal("the parts are not the whole")
		}
	})
}

// FuzzDecodeStrict: what is taken re-encodes to an equal value; what is refused
// has a printable text.
func FuzzDecodeStrict(f *testing.F) {
	for _, c := range badBodies() {
		if len(c.body) < 4096 {
			f.Add([]byte(c.body))
		}
	}
	f.Add([]byte(openBody("")))
	f.Fuzz(func(t *testing.T, data []byte) {
		checkStrict(t, data, &OpenRequest{}, &OpenRequest{})
		checkStrict(t, data, &RegisterRequest{}, &RegisterRequest{})
		checkStrict(t, data, &EndedRequest{}, &EndedRequest{})
		checkStrict(t, data, &Request{}, &Request{})
	})
}

func checkStrict(t *testing.T, data []byte, v, back any) {
	if err := DecodeStrict(data, MaxOpenBody, v); err != nil {
		if c := CodeOf(err); c != CodeInvalidArgument && c != CodePayloadTooLarge {
			t.Fatalf("refused with %v", err)
		}
		checkPrintable(t, err)
		return
	}
	again := Encode(v)
	if err := DecodeStrict(again, MaxOpenBody*2, back); err != nil {
		t.Fatalf("%s was taken and its own encoding %s is not: %v", data, again, err)
	}
	if !bytes.Equal(again, Encode(back)) {
		t.Fatalf("%s becomes %s, then %s", data, again, Encode(back))
	}
}

// FuzzDecodeExec: what is taken passes Check again after a round trip.
func FuzzDecodeExec(f *testing.F) {
	f.Add([]byte(`{"mode":"duplex","argv":["sh","-c","echo hi"],"env":{"A":"1"},"cwd":"sub/dir","stdin":"pipe"}`))
	f.Add([]byte(`{"mode":"execute","argv":["tr","a-z","A-Z"],"stdin":"pipe","stdinData":"aGVsbG8="}`))
	f.Add([]byte(`{"mode":"duplex","argv":["top"],"stdin":"pty","tty":{"cols":80,"rows":24,"term":"xterm"}}`))
	f.Add([]byte(`{"mode":"duplex","argv":["a\u0000b"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := DecodeExec(data)
		if err != nil {
			checkPrintable(t, err)
			return
		}
		if len(e.Argv) == 0 || len(e.Argv) > MaxArgv || len(e.Env) > MaxEnv {
			t.Fatalf("taken: %+v", e)
		}
		again, err := DecodeExec(Encode(e))
		if err != nil {
			if CodeOf(err) == CodePayloadTooLarge {
				return // escapes may make it longer
			}
			t.Fatalf("%+v was taken and its own encoding is not: %v", e, err)
		}
		if d := cmp.Diff(Encode(e), Encode(again)); d != "" {
			t.Fatal(d)
		}
	})
}
