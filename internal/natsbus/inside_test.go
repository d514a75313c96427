package natsbus

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestParseAck(t *testing.T) {
	status := func(s string) nats.Header { return nats.Header{"Status": {s}} }
	for _, c := range []struct {
		name, data string
		h          nats.Header
		seq        uint64
		why        duplex.RefuseReason
		ok         bool
	}{
		{name: "usual", data: `{"stream":"WEFT_CH_t1_0", "seq":12}`, seq: 12, ok: true},
		{name: "more keys", data: `{"stream":"S","domain":"d","seq": 7,"duplicate":true}`, seq: 7, ok: true},
		{name: "largest", data: `{"seq":18446744073709551615}`, seq: 1<<64 - 1, ok: true},
		{name: "full", data: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, why: duplex.RefusedFull, ok: true},
		{name: "account full", data: `{"error":{"code":400,"err_code":10002},"stream":"S","seq":0}`, why: duplex.RefusedFull, ok: true},
		{name: "too large", data: `{"error":{"code":400,"err_code":10054},"stream":"S","seq":9}`, why: duplex.RefusedOther, ok: true},
		{name: "no responders", h: status("503"), why: duplex.RefusedNoResponders, ok: true},
		{name: "another status", h: status("408")},
		{name: "empty"},
		{name: "no JSON", data: `seq`},
		{name: "no sequence", data: `{"stream":"S"}`},
		{name: "zero", data: `{"stream":"S","seq":0}`},
		{name: "cut off", data: `{"stream":"S","seq":12`},
		{name: "negative", data: `{"stream":"S","seq":-1}`},
		{name: "too big", data: `{"seq":18446744073709551616}`},
	} {
		seq, why, ok := parseAck(c.h, []byte(c.data))
		if ok != c.ok || ok && (seq != c.seq || why != c.why) {
			t.Errorf("%s: %d, %d, %t; want %d, %d, %t", c.name, seq, why, ok, c.seq, c.why, c.ok)
		}
	}
}

// TestS011_JetStreamAPIIsNoInbox needs no server: 2.15.3 does not pass a request
// with such a reply subject on.
func TestS011_JetStreamAPIIsNoInbox(t *testing.T) {
	c := &Conn{}
	m := Msg{Subject: "weft.v1.api.t1.info", Reply: "$JS.API.STREAM.DELETE.X", c: c}
	for _, err := range []error{m.Respond(nil), m.RespondError(wire.Errorf(wire.CodeInternal, "no"))} {
		if wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("err = %v, want INVALID_ARGUMENT", err)
		}
	}
	if got := c.Counters().BadReply; got != 2 {
		t.Errorf("BadReply = %d, want 2", got)
	}
}

func FuzzParseAck(f *testing.F) {
	f.Add([]byte(`{"stream":"S","seq":12}`))
	f.Add([]byte(`{"error":{"err_code":10077},"seq":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		seq, why, ok := parseAck(nil, data)
		if ok && (seq == 0) == (why == 0) {
			t.Errorf("%q is both or neither: seq %d, why %d", data, seq, why)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	m := &Mux{inbox: "_INBOX.abc"}
	f.Add("_INBOX.abc.1.2")
	f.Add("_INBOX.abc")
	f.Fuzz(func(t *testing.T, s string) {
		if _, _, ok := m.parseReply(s); ok && len(s) < len(m.inbox)+4 {
			t.Errorf("%q has no port and sequence", s)
		}
	})
}

func FuzzReplyAllowed(f *testing.F) {
	f.Add("_INBOX.a")
	f.Add("_R_.a\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		if ReplyAllowed(s) && slices.ContainsFunc([]byte(s), func(c byte) bool {
			return c <= ' ' || c >= 0x7f || c == '*' || c == '>' || c == '$'
		}) {
			t.Errorf("allows %q", s)
		}
	})
}

// TestF026_ReconnectsAreSpread runs the pace of 250 processes that lost one
// server at the same moment, for ten seconds of its absence.
func TestF026_ReconnectsAreSpread(t *testing.T) {
	const fleet, away, bin = 250, 10 * time.Second, 100 * time.Millisecond
	pace := backoff(defaultReconnect)
	attempts := make([]int, away/bin)
	total := 0
	for range fleet {
		at := time.Duration(0)
		for n := 1; ; n++ {
			at += pace(n)
			if at >= away {
				break
			}
			attempts[at/bin]++
			total++
		}
	}
	mean := float64(total) / float64(len(attempts))
	if peak := float64(slices.Max(attempts)); peak >= 3*mean {
		t.Errorf("%v attempts in one bin, mean %.1f", peak, mean)
	}
	if slowest := pace(1 << 30); slowest > 4*defaultReconnect {
		t.Errorf("waits %v after many attempts", slowest)
	}
}
