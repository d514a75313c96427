package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/weft-fabric/weft/internal/subjects"
)

// SecretSize and KeySize are the bytes of a channel secret and of the keys
// that follow from it.
const (
	SecretSize = 32
	KeySize    = 32
	TagSize    = 16
)

// Key tags one direction of a channel: of one attach upwards, of the whole
// channel downwards.
type Key [KeySize]byte

// NewSecret makes a channel secret.
func NewSecret() []byte {
	s := make([]byte, SecretSize)
	_, _ = rand.Read(s) // never fails (crypto/rand, Go 1.24)
	return s
}

// KeyUp is K_up(attach): what one attach's holder signs with.
func KeyUp(secret []byte, attach uint32) Key {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("weft/v1 up"))
	m.Write(binary.BigEndian.AppendUint32(nil, attach))
	return Key(m.Sum(nil))
}

// KeyDown is K_down: what the worker signs with.
func KeyDown(secret []byte) Key {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("weft/v1 down"))
	return Key(m.Sum(nil))
}

// Mask hides the key of the next attach in the answer to an attach request: the
// answer goes over a subject that others of the tenant may hear, and only the
// holder of k, who asked with number n, can take the mask off again. It is its
// own inverse.
func (k Key) Mask(next Key, attach uint32, n uint64) Key {
	m := hmac.New(sha256.New, k[:])
	m.Write([]byte("weft/v1 attach"))
	m.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, attach), n))
	pad := m.Sum(nil)
	for i := range next {
		next[i] ^= pad[i]
	}
	return next
}

// mac is HMAC-SHA256 truncated to 16 bytes over the parts.
func (k Key) mac(parts ...[]byte) (tag [TagSize]byte) {
	m := hmac.New(sha256.New, k[:])
	for _, p := range parts {
		m.Write(p)
	}
	copy(tag[:], m.Sum(nil))
	return tag
}

func (k Key) checkMAC(tag []byte, parts ...[]byte) bool {
	want := k.mac(parts...)
	return subtle.ConstantTimeCompare(want[:], tag) == 1
}

// FrameKey seals and opens the frames of one direction under one key:
// AES-128-GMAC, nonce = direction ‖ 3 zero bytes ‖ sequence. A (key, sequence)
// pair must name one content only; the sender makes each frame once.
// A FrameKey is safe for concurrent use.
type FrameKey struct {
	aead    cipher.AEAD
	scratch sync.Pool // of *scratch
}

// scratch is what a tag is made with. It is kept for reuse because whatever is
// handed through the AEAD interface would else be allocated for every frame.
type scratch struct {
	nonce [12]byte
	tag   [TagSize]byte
}

// NewFrameKey prepares k for frames of direction d.
func NewFrameKey(k Key, d subjects.Dir) *FrameKey {
	block, err := aes.NewCipher(k[:16])
	if err != nil {
		panic(fmt.Sprintf("wire: AES refuses a 16-byte key: %v", err))
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(fmt.Sprintf("wire: GCM refuses AES: %v", err))
	}
	fk := &FrameKey{aead: aead}
	fk.scratch.New = func() any { return &scratch{nonce: [12]byte{byte(d)}} }
	return fk
}

// take returns a scratch that holds the nonce of seq; it goes back with
// k.scratch.Put.
func (k *FrameKey) take(seq uint64) *scratch {
	x := k.scratch.Get().(*scratch)
	binary.BigEndian.PutUint64(x.nonce[4:], seq)
	return x
}
