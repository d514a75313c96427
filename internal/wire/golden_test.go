package wire

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
)

// The values behind the golden files. The files were made by a program in
// another language from docs/PROTOCOL.md; they are never rewritten from here.
const goldenEpoch = 3

func goldenSecret() []byte {
	s := make([]byte, SecretSize)
	for i := range s {
		s[i] = byte(i)
	}
	return s
}

func goldenChannel() uuid.UUID { return uuid.MustParse("7d444840-9dc0-41d1-b245-5ffdce74fad2") }
func otherChannel() uuid.UUID  { return uuid.MustParse("0b8f5a3e-2c1d-4e6f-8a9b-0c1d2e3f4a5b") }

func goldenUp() Key   { return KeyUp(goldenSecret(), 1) }
func goldenDown() Key { return KeyDown(goldenSecret()) }

// readGolden reads a file of hex digits; # begins a comment.
func readGolden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "golden", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.TrimSpace(line))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

func wantGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	if want := readGolden(t, name); !bytes.Equal(got, want) {
		t.Errorf("%s differs from its golden file:\ngot  %x\nwant %x", name, got, want)
	}
}

type goldenFrame struct {
	name string
	dir  subjects.Dir
	f    Frame
}

func goldenFrames() []goldenFrame {
	exit := Exit{Outcome: ExitedWith(0), Totals: Totals{Stdin: 11, Stdout: 11, Stderr: 10}}
	reset := Exit{Outcome: Outcome{Kind: DataLost, Bytes: 4096, Offset: 8192}, Totals: Totals{Stdout: 8192}}
	return []goldenFrame{
		{"frame_stdin", subjects.Up, Frame{Type: FrameStdin, Stream: Stdin, Attach: 1, Seq: 1, Payload: []byte("hello weft\n")}},
		{"frame_eof_stdin", subjects.Up, Frame{Type: FrameEOF, Stream: Stdin, Attach: 1, Seq: 2, Offset: 11}},
		{"frame_stdout", subjects.Down, Frame{Type: FrameStdout, Stream: Stdout, Seq: 1, Payload: []byte("HELLO WEFT\n")}},
		{"frame_stderr", subjects.Down, Frame{Type: FrameStderr, Stream: Stderr, Seq: 2, Offset: 5, Payload: []byte("oops\n")}},
		{"frame_eof_stdout", subjects.Down, Frame{Type: FrameEOF, Stream: Stdout, Seq: 3, Offset: 11}},
		{"frame_eof_stderr", subjects.Down, Frame{Type: FrameEOF, Stream: Stderr, Seq: 4, Offset: 10}},
		{"frame_exit", subjects.Down, Frame{Type: FrameExit, Seq: 5, Payload: Encode(exit)}},
		{"frame_reset", subjects.Down, Frame{Type: FrameReset, Seq: 6, Payload: Encode(reset)}},
	}
}

func (g goldenFrame) key() Key {
	if g.dir == subjects.Up {
		return goldenUp()
	}
	return goldenDown()
}

// frameBuf is room for a header and then the payload, as Seal wants it.
func frameBuf(payload []byte) []byte { return append(make([]byte, HeaderSize), payload...) }

func TestGoldenFrames(t *testing.T) {
	seen := map[FrameType]bool{}
	for _, g := range goldenFrames() {
		g.f.Epoch = goldenEpoch
		fk := NewFrameKey(g.key(), g.dir)
		wantGolden(t, g.name, fk.Seal(frameBuf(g.f.Payload), g.f))
		f, err := fk.Open(readGolden(t, g.name))
		if err != nil {
			t.Errorf("%s: %v", g.name, err)
		}
		if g.f.Payload == nil {
			g.f.Payload = []byte{}
		}
		if d := cmp.Diff(g.f, f); d != "" {
			t.Errorf("%s opens as another frame:\n%s", g.name, d)
		}
		seen[f.Type] = true
	}
	for typ := FrameStdin; typ <= FrameReset; typ++ {
		if !seen[typ] {
			t.Errorf("frame type %d has no golden file", typ)
		}
	}
}

// TestGoldenFrameTags computes each golden tag from the bytes of the file alone.
func TestGoldenFrameTags(t *testing.T) {
	for _, g := range goldenFrames() {
		b := readGolden(t, g.name)
		key := g.key()
		block, err := aes.NewCipher(key[:16])
		if err != nil {
			t.Fatal(err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		nonce := append([]byte{byte(g.dir), 0, 0, 0}, b[16:24]...)
		covered := append(bytes.Clone(b[:40]), b[56:]...)
		if tag := gcm.Seal(nil, nonce, nil, covered); !bytes.Equal(tag, b[40:56]) {
			t.Errorf("%s: tag %x, computed %x", g.name, b[40:56], tag)
		}
	}
}

func TestGoldenKeys(t *testing.T) {
	for _, v := range []struct {
		name string
		got  Key
		want string
	}{
		{"K_up(1)", KeyUp(goldenSecret(), 1), "5e48afb496c1e229e9bc477c0e1642b1034dd3e708348a2c6aa8d4dbbe0c8a37"},
		{"K_up(2)", KeyUp(goldenSecret(), 2), "c7b064ddaf8f1c4937c20b53039a8625a731991f6277f7e6faab9a4724239c77"},
		{"K_up(2^32-1)", KeyUp(goldenSecret(), 1<<32-1), "e213237c8a25acfbf0b0c2730b43333bc83895a8b06d1c2e3ba03ff955bdb475"},
		{"K_down", KeyDown(goldenSecret()), "612c75807bc30d830ab3a760d1c7c17cfd66a1069d541711cfb9d7a6a379e61c"},
	} {
		if got := hex.EncodeToString(v.got[:]); got != v.want {
			t.Errorf("%s is %s; want %s", v.name, got, v.want)
		}
	}
	m := hmac.New(sha256.New, goldenSecret())
	m.Write(append([]byte("weft/v1 up"), 0, 0, 0, 1))
	if k := goldenUp(); !bytes.Equal(m.Sum(nil), k[:]) {
		t.Error("K_up(1) is not HMAC-SHA256(secret, label ‖ attach)")
	}
	if a, b := NewSecret(), NewSecret(); len(a) != SecretSize || bytes.Equal(a, b) {
		t.Errorf("two secrets: %x and %x", a, b)
	}
}

func goldenStates() map[string]State {
	down := [streamCount]Credit{Stdout: {Acked: 11, Limit: 262155}, Stderr: {Acked: 10, Limit: 262154}}
	s := State{Channel: goldenChannel(), Attach: 1, AckedSeq: 2, FrameLimit: 58, Streams: down, LastSeq: 2}
	credit, probe, state := s, s, s
	credit.Kind, credit.Counter = ControlCredit, 1
	probe.Kind, probe.Counter = ControlProbe, 2
	state.Kind, state.Counter, state.LastSeq, state.Written = ControlState, 3, 5, 11
	state.Streams = [streamCount]Credit{Stdin: {Acked: 11, Limit: 262155}}
	return map[string]State{"control_credit": credit, "control_probe": probe, "control_state": state}
}

func TestGoldenControl(t *testing.T) {
	up, down, ch := goldenUp(), goldenDown(), goldenChannel()
	for name, s := range goldenStates() {
		k := up
		if s.Kind == ControlState {
			k = down
		}
		wantGolden(t, name, s.Append(nil, k))
		got, err := DecodeState(readGolden(t, name), k)
		if d := cmp.Diff(s, got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	wantGolden(t, "control_frame", append([]byte{byte(ControlFrame)}, readGolden(t, "frame_stdout")...))
	req, err := AppendRequest(nil, ControlRequest, ch, 1, Encode(Request{N: 1, Verb: VerbSignal, Signal: "INT"}), up)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "control_request", req)
	ans, err := AppendRequest(nil, ControlAnswer, ch, 1, Encode(Answer{N: 1}), down)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "control_answer", ans)
	wantGolden(t, "control_fenced", AppendFenced(nil, ch, 1, down))
	wantGolden(t, "control_stdin_closed", AppendStdinClosed(nil, ch, 1, 4, 4096, down))
	wantGolden(t, "control_gone", AppendGone(nil, otherChannel()))
}

func TestGoldenKeepalive(t *testing.T) {
	states := goldenStates()
	probe := states["control_probe"]
	second := sha256.Sum256([]byte("second"))
	other := State{
		Kind: ControlProbe, Channel: otherChannel(), Attach: 1, Counter: 1, FrameLimit: 56,
		Streams: [streamCount]Credit{Stdout: {Limit: 262144}, Stderr: {Limit: 262144}},
	}
	wantGolden(t, "keepalive_request", other.Append(probe.Append(nil, goldenUp()), KeyUp(second[:], 1)))

	state := states["control_state"]
	b := state.Append(nil, goldenDown())
	b = AppendStdinClosed(b, goldenChannel(), 1, 4, 4096, goldenDown())
	wantGolden(t, "keepalive_answer", AppendGone(b, otherChannel()))
}

// TestGoldenControlTags computes each golden tag from the bytes of the file
// alone: HMAC-SHA256 over everything but the tag, cut to 16 bytes.
func TestGoldenControlTags(t *testing.T) {
	for _, c := range []struct {
		name string
		key  Key
		tag  int // its position
	}{
		{"control_credit", goldenUp(), 109}, {"control_probe", goldenUp(), 109}, {"control_state", goldenDown(), 109},
		{"control_request", goldenUp(), 21}, {"control_answer", goldenDown(), 21},
		{"control_fenced", goldenDown(), 21}, {"control_stdin_closed", goldenDown(), 37},
	} {
		b := readGolden(t, c.name)
		m := hmac.New(sha256.New, c.key[:])
		m.Write(b[:c.tag])
		m.Write(b[c.tag+16:])
		if want := m.Sum(nil)[:16]; !bytes.Equal(b[c.tag:c.tag+16], want) {
			t.Errorf("%s: tag %x, computed %x", c.name, b[c.tag:c.tag+16], want)
		}
		if id := uuid.UUID(b[1:17]); id != goldenChannel() || binary.BigEndian.Uint32(b[17:]) != 1 {
			t.Errorf("%s: channel and attach are not at bytes 1 and 17", c.name)
		}
	}
}
