package wire

import (
	"encoding/binary"
	"errors"
)

// Version is the version byte of a frame and the protocol version of register.
const Version = 1

// Sizes of a frame in bytes.
const (
	HeaderSize = 56
	MaxPayload = 64 << 10
	MaxFrame   = HeaderSize + MaxPayload
	tagOffset  = 40
)

// FrameType is what a frame carries.
type FrameType uint8

// The frame types.
const (
	FrameStdin  FrameType = 1
	FrameStdout FrameType = 2
	FrameStderr FrameType = 3
	FrameEOF    FrameType = 4
	FrameExit   FrameType = 5
	FrameReset  FrameType = 6
)

// Stream is one of the byte streams of a channel.
type Stream uint8

// The streams; StreamNone stands in frames that belong to none.
const (
	StreamNone Stream = 0
	Stdin      Stream = 1
	Stdout     Stream = 2
	Stderr     Stream = 3

	streamCount = 4 // for arrays indexed by Stream
)

func (s Stream) String() string {
	return [...]string{"none", "stdin", "stdout", "stderr"}[s&3]
}

// Data reports the frame type that carries bytes of s.
func (s Stream) Data() FrameType { return FrameType(s) }

// Frame is one message of a channel. Seq counts frames of a direction from 1;
// Offset is the position of the payload's first byte in its stream, of an EOF
// the stream's total. Payload is at most MaxPayload bytes; in EXIT and RESET it
// is JSON.
type Frame struct {
	Type    FrameType
	Stream  Stream // whose data or end this is
	Attach  uint32 // the sender's attach upwards, 0 downwards
	Epoch   uint64 // the n of the lease's epoch
	Seq     uint64
	Offset  uint64
	Payload []byte
}

// End is the offset just after the frame's bytes.
func (f Frame) End() uint64 { return f.Offset + uint64(len(f.Payload)) }

// Errors of decoding a frame. They never carry bytes of the frame.
var (
	ErrFrameSize    = errors.New("wire: frame is shorter than its header or its length disagrees")
	ErrFrameVersion = errors.New("wire: frame version is not 1")
	ErrFrameType    = errors.New("wire: frame type or stream is unknown")
	ErrFrameField   = errors.New("wire: frame has a reserved or out-of-range field set")
	ErrFrameTag     = errors.New("wire: frame tag is wrong")
)

// maxOffset bounds offsets so that offset + length never wraps.
const maxOffset = 1<<63 - 1 - MaxPayload

// Seal turns buf, HeaderSize bytes of room followed by the payload, into the
// frame f (whose own Payload is ignored) and returns buf. It allocates nothing.
func (k *FrameKey) Seal(buf []byte, f Frame) []byte {
	// The tag covers header and payload without the 16 bytes of the tag between
	// them: the header is written next to the payload, tagged there, then moved.
	h := buf[HeaderSize-tagOffset:]
	h[0], h[1], h[2], h[3] = Version, byte(f.Type), 0, 0
	if f.Type == FrameEOF {
		h[2] = byte(f.Stream)
	}
	binary.BigEndian.PutUint32(h[4:], f.Attach)
	binary.BigEndian.PutUint64(h[8:], f.Epoch)
	binary.BigEndian.PutUint64(h[16:], f.Seq)
	binary.BigEndian.PutUint64(h[24:], f.Offset)
	binary.BigEndian.PutUint32(h[32:], uint32(len(buf)-HeaderSize))
	binary.BigEndian.PutUint32(h[36:], 0)
	x := k.take(f.Seq)
	k.aead.Seal(x.tag[:0], x.nonce[:], nil, h)
	copy(buf, h[:tagOffset])
	copy(buf[tagOffset:], x.tag[:])
	k.scratch.Put(x)
	return buf
}

// Open checks buf against the format and the key and returns the frame, whose
// payload is a part of buf. It writes to buf while it works and restores it, so
// the caller must own buf.
func (k *FrameKey) Open(buf []byte) (Frame, error) {
	f, err := DecodeFrame(buf)
	if err != nil {
		return Frame{}, err
	}
	x := k.take(f.Seq)
	copy(x.tag[:], buf[tagOffset:HeaderSize])
	copy(buf[HeaderSize-tagOffset:HeaderSize], buf[:tagOffset])
	_, err = k.aead.Open(nil, x.nonce[:], x.tag[:], buf[HeaderSize-tagOffset:])
	copy(buf, buf[HeaderSize-tagOffset:HeaderSize])
	copy(buf[tagOffset:], x.tag[:])
	k.scratch.Put(x)
	if err != nil {
		return Frame{}, ErrFrameTag
	}
	return f, nil
}

// DecodeFrame reads a frame without checking its tag.
func DecodeFrame(buf []byte) (Frame, error) {
	if len(buf) < HeaderSize || len(buf) > MaxFrame {
		return Frame{}, ErrFrameSize
	}
	if buf[0] != Version {
		return Frame{}, ErrFrameVersion
	}
	f := Frame{
		Type:    FrameType(buf[1]),
		Attach:  binary.BigEndian.Uint32(buf[4:]),
		Epoch:   binary.BigEndian.Uint64(buf[8:]),
		Seq:     binary.BigEndian.Uint64(buf[16:]),
		Offset:  binary.BigEndian.Uint64(buf[24:]),
		Payload: buf[HeaderSize:len(buf):len(buf)],
	}
	if uint64(binary.BigEndian.Uint32(buf[32:])) != uint64(len(f.Payload)) {
		return Frame{}, ErrFrameSize
	}
	if buf[3] != 0 || binary.BigEndian.Uint32(buf[36:]) != 0 || f.Seq == 0 || f.Offset > maxOffset {
		return Frame{}, ErrFrameField
	}
	switch f.Type {
	case FrameStdin, FrameStdout, FrameStderr:
		f.Stream = Stream(f.Type)
		if buf[2] != 0 || len(f.Payload) == 0 {
			return Frame{}, ErrFrameField
		}
	case FrameEOF:
		f.Stream = Stream(buf[2])
		if f.Stream < Stdin || f.Stream > Stderr {
			return Frame{}, ErrFrameType
		}
		if len(f.Payload) != 0 {
			return Frame{}, ErrFrameField
		}
	case FrameExit, FrameReset:
		if buf[2] != 0 || f.Offset != 0 {
			return Frame{}, ErrFrameField
		}
	default:
		return Frame{}, ErrFrameType
	}
	return f, nil
}
