package natsbus

import (
	"bytes"
	"encoding/json"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/duplex"
)

// Error codes of JetStream that mean that there is no room: the stream's own
// limits (a generic store failure shares that code), the account's, the server's.
const (
	errCodeStreamFull      = 10077
	errCodeAccountResource = 10002
	errCodeInsufficient    = 10023
	errCodeStorageExceeded = 10047
)

// parseAck reads JetStream's answer to a store: the stream's sequence, or why
// not. ok is false for what is neither.
func parseAck(h nats.Header, data []byte) (seq uint64, why duplex.RefuseReason, ok bool) {
	if len(data) == 0 {
		return 0, duplex.RefusedNoResponders, len(h) > 0 && h.Get("Status") == "503"
	}
	if seq, ok := ackSeq(data); ok {
		return seq, 0, true
	}
	var ack struct {
		Seq   uint64 `json:"seq"`
		Error *struct {
			ErrCode int    `json:"err_code"`
			Text    string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return 0, 0, false
	}
	if ack.Error == nil {
		return ack.Seq, 0, ack.Seq > 0
	}
	switch ack.Error.ErrCode {
	case errCodeStreamFull, errCodeAccountResource, errCodeInsufficient, errCodeStorageExceeded:
		return 0, duplex.RefusedFull, true
	}
	return 0, duplex.RefusedOther, true
}

// ackSeq reads the usual ack, {"stream":"…","seq":12}, without a JSON decoder:
// there is one for every frame. Whatever looks different is left to parseAck.
func ackSeq(data []byte) (uint64, bool) {
	const key = `"seq":`
	i := bytes.Index(data, []byte(key))
	if i < 0 || bytes.Contains(data, []byte(`"error"`)) {
		return 0, false
	}
	var n uint64
	digits := 0
	for _, c := range bytes.TrimLeft(data[i+len(key):], " ") {
		if c < '0' || c > '9' {
			return n, digits > 0 && digits < 19 && n > 0 && (c == ',' || c == '}')
		}
		n = n*10 + uint64(c-'0')
		digits++
	}
	return 0, false
}
