package wire

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"
)

// ControlKind is the first byte of a control message.
type ControlKind uint8

// The kinds of control message.
const (
	ControlFrame       ControlKind = 1 // a repair: one frame, byte-identical
	ControlCredit      ControlKind = 2 // the receiver has taken bytes
	ControlProbe       ControlKind = 3 // like Credit, and asks for a State
	ControlState       ControlKind = 4 // answers a Probe
	ControlRequest     ControlKind = 5 // numbered JSON request
	ControlAnswer      ControlKind = 6 // its answer
	ControlFenced      ControlKind = 7 // a newer attach holds the channel
	ControlStdinClosed ControlKind = 8 // the process closed its stdin
	ControlGone        ControlKind = 9 // keepalive answer: channel not known here; a hint, untagged
)

// Sizes of control messages in bytes.
const (
	StateSize       = 1 + 16 + 4 + 8*4 + 3*16 + 8 + TagSize
	FencedSize      = 1 + 16 + 4 + TagSize
	StdinClosedSize = 1 + 16 + 4 + 8 + 8 + TagSize
	GoneSize        = 1 + 16
	requestHeader   = 1 + 16 + 4 + TagSize
	MaxRequest      = 64 << 10 // the whole message
	KeepaliveMax    = 500      // probes in one keepalive message
)

// Errors of decoding a control message.
var (
	ErrControlSize = errors.New("wire: control message has the wrong size for its kind")
	ErrControlKind = errors.New("wire: control message is of no known kind")
	ErrControlTag  = errors.New("wire: control message tag is wrong")
)

// Credit is one stream's part of a State: what its consumer has taken, and the
// absolute offset up to which the sender may send.
type Credit struct {
	Acked, Limit uint64
}

// State is the body of CREDIT, PROBE and STATE: the receiver's side for the
// direction that comes in, and the sender's last sequence for the direction
// that goes out. Counter rises per attach and direction; an older one is
// ignored. AckedSeq: every frame up to it was taken. FrameLimit: the highest
// sequence that a data frame may have. Written: bytes that the process's stdin
// has taken (downwards only).
type State struct {
	Kind       ControlKind
	Channel    uuid.UUID
	Attach     uint32
	Counter    uint64
	AckedSeq   uint64
	FrameLimit uint64
	Streams    [streamCount]Credit // by Stream; index 0 is unused
	LastSeq    uint64
	Written    uint64
}

// Append writes s with its tag to b.
func (s *State) Append(b []byte, k Key) []byte {
	start := len(b)
	b = append(b, byte(s.Kind))
	b = append(b, s.Channel[:]...)
	b = binary.BigEndian.AppendUint32(b, s.Attach)
	for _, v := range [...]uint64{s.Counter, s.AckedSeq, s.FrameLimit} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, c := range s.Streams[Stdin:] {
		b = binary.BigEndian.AppendUint64(b, c.Acked)
		b = binary.BigEndian.AppendUint64(b, c.Limit)
	}
	b = binary.BigEndian.AppendUint64(b, s.LastSeq)
	b = binary.BigEndian.AppendUint64(b, s.Written)
	tag := k.mac(b[start:])
	return append(b, tag[:]...)
}

// PeekChannel returns the channel and attach that a control message other than
// FRAME names, so that a receiver can find its keys.
func PeekChannel(b []byte) (id uuid.UUID, attach uint32, err error) {
	if len(b) < GoneSize {
		return id, 0, ErrControlSize
	}
	copy(id[:], b[1:])
	if len(b) >= GoneSize+4 {
		attach = binary.BigEndian.Uint32(b[17:])
	}
	return id, attach, nil
}

// DecodeState reads a CREDIT, PROBE or STATE of exactly StateSize bytes.
func DecodeState(b []byte, k Key) (State, error) {
	var s State
	if len(b) != StateSize {
		return s, ErrControlSize
	}
	if kind := ControlKind(b[0]); kind < ControlCredit || kind > ControlState {
		return s, ErrControlKind
	}
	if !k.checkMAC(b[StateSize-TagSize:], b[:StateSize-TagSize]) {
		return s, ErrControlTag
	}
	s.Kind = ControlKind(b[0])
	copy(s.Channel[:], b[1:])
	s.Attach = binary.BigEndian.Uint32(b[17:])
	p := b[21:]
	next := func() uint64 {
		v := binary.BigEndian.Uint64(p)
		p = p[8:]
		return v
	}
	s.Counter, s.AckedSeq, s.FrameLimit = next(), next(), next()
	for i := range s.Streams[Stdin:] {
		s.Streams[int(Stdin)+i] = Credit{Acked: next(), Limit: next()}
	}
	s.LastSeq, s.Written = next(), next()
	return s, nil
}

// SplitKeepalive cuts the next message off a keepalive or its answer and
// returns it with what is left.
func SplitKeepalive(b []byte) (msg, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, ErrControlSize
	}
	var n int
	switch ControlKind(b[0]) {
	case ControlProbe, ControlState:
		n = StateSize
	case ControlFenced:
		n = FencedSize
	case ControlGone:
		n = GoneSize
	case ControlStdinClosed:
		n = StdinClosedSize
	default:
		return nil, nil, ErrControlKind
	}
	if len(b) < n {
		return nil, nil, ErrControlSize
	}
	return b[:n:n], b[n:], nil
}

// AppendFenced writes a FENCED for an old attach, tagged with K_down.
func AppendFenced(b []byte, channel uuid.UUID, attach uint32, k Key) []byte {
	start := len(b)
	b = append(b, byte(ControlFenced))
	b = append(b, channel[:]...)
	b = binary.BigEndian.AppendUint32(b, attach)
	tag := k.mac(b[start:])
	return append(b, tag[:]...)
}

// DecodeFenced reads the attach that a FENCED fences.
func DecodeFenced(b []byte, k Key) (attach uint32, err error) {
	if len(b) != FencedSize || ControlKind(b[0]) != ControlFenced {
		return 0, ErrControlSize
	}
	if !k.checkMAC(b[FencedSize-TagSize:], b[:FencedSize-TagSize]) {
		return 0, ErrControlTag
	}
	return binary.BigEndian.Uint32(b[17:]), nil
}

// AppendStdinClosed writes a STDIN_CLOSED: the process took taken bytes.
func AppendStdinClosed(b []byte, channel uuid.UUID, attach uint32, counter, taken uint64, k Key) []byte {
	start := len(b)
	b = append(b, byte(ControlStdinClosed))
	b = append(b, channel[:]...)
	b = binary.BigEndian.AppendUint32(b, attach)
	b = binary.BigEndian.AppendUint64(b, counter)
	b = binary.BigEndian.AppendUint64(b, taken)
	tag := k.mac(b[start:])
	return append(b, tag[:]...)
}

// DecodeStdinClosed reads how many bytes the process took.
func DecodeStdinClosed(b []byte, k Key) (taken uint64, err error) {
	if len(b) != StdinClosedSize || ControlKind(b[0]) != ControlStdinClosed {
		return 0, ErrControlSize
	}
	if !k.checkMAC(b[StdinClosedSize-TagSize:], b[:StdinClosedSize-TagSize]) {
		return 0, ErrControlTag
	}
	return binary.BigEndian.Uint64(b[29:]), nil
}

// AppendGone writes a GONE.
func AppendGone(b []byte, channel uuid.UUID) []byte {
	return append(append(b, byte(ControlGone)), channel[:]...)
}

// AppendRequest writes a REQUEST or ANSWER around its JSON body. A message of
// more than MaxRequest bytes is PAYLOAD_TOO_LARGE.
func AppendRequest(b []byte, kind ControlKind, channel uuid.UUID, attach uint32, body []byte, k Key) ([]byte, error) {
	if len(body)+requestHeader > MaxRequest {
		return nil, Errorf(CodePayloadTooLarge, "a control request is at most %d bytes; this one is %d", MaxRequest, len(body)+requestHeader)
	}
	start := len(b)
	b = append(b, byte(kind))
	b = append(b, channel[:]...)
	b = binary.BigEndian.AppendUint32(b, attach)
	tag := k.mac(b[start:], body)
	b = append(b, tag[:]...)
	return append(b, body...), nil
}

// DecodeRequest returns the JSON body of a REQUEST or ANSWER.
func DecodeRequest(b []byte, k Key) ([]byte, error) {
	if len(b) < requestHeader || len(b) > MaxRequest {
		return nil, ErrControlSize
	}
	if kind := ControlKind(b[0]); kind != ControlRequest && kind != ControlAnswer {
		return nil, ErrControlKind
	}
	if !k.checkMAC(b[requestHeader-TagSize:requestHeader], b[:requestHeader-TagSize], b[requestHeader:]) {
		return nil, ErrControlTag
	}
	return b[requestHeader:], nil
}

// Control request verbs.
const (
	VerbSignal    = "signal"
	VerbStop      = "stop"
	VerbResize    = "resize"
	VerbInterrupt = "interrupt"
	VerbAttach    = "attach"
	VerbDetach    = "detach"
	VerbRepair    = "repair"
)

// Request is the body of a REQUEST. N counts per attach from 1; 0 is a hint
// that is not answered (repair). Signal is a name without SIG. From and To are
// the first and last sequence that a repair asks for.
type Request struct {
	N       uint64 `json:"n"`
	Verb    string `json:"verb"`
	Signal  string `json:"signal,omitempty"`
	GraceMS int64  `json:"graceMs,omitempty"`
	Cols    uint16 `json:"cols,omitempty"`
	Rows    uint16 `json:"rows,omitempty"`
	From    uint64 `json:"from,omitempty"`
	To      uint64 `json:"to,omitempty"`
	// Credit and Offsets are an attach's: as in AttachRequest.
	Credit  *DownCredit `json:"credit,omitempty"`
	Offsets *Offsets    `json:"offsets,omitempty"`
}

// Answer is the body of an ANSWER: Error is nil when the request was obeyed.
// Outcome is set when the channel had ended already.
type Answer struct {
	N       uint64       `json:"n"`
	Error   *Error       `json:"error,omitempty"`
	Outcome *Outcome     `json:"outcome,omitempty"`
	Attach  *AttachReply `json:"attach,omitempty"` // of an attach
}

// Exit is the payload of an EXIT frame: the outcome, and how many bytes of each
// stream were sent in all.
type Exit struct {
	Outcome Outcome `json:"outcome"`
	Totals  Totals  `json:"totals"`
}

// Totals counts the bytes of a channel: taken by the process's stdin, sent on
// stdout and stderr.
type Totals struct {
	Stdin  uint64 `json:"stdin"`
	Stdout uint64 `json:"stdout"`
	Stderr uint64 `json:"stderr"`
}
