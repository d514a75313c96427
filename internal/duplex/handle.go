package duplex

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

var _ Handler = (*End)(nil)

// maxEarly bounds the frames that wait for the keys: what the first credit
// allows, and the reserved ones.
const maxEarly = FrameWindow + reservedFrames

// Frame takes a live frame.
func (e *End) Frame(buf []byte) {
	e.mu.Lock()
	now := time.Now()
	if e.closed {
		e.mu.Unlock()
		return
	}
	if !e.started {
		if len(e.early) < maxEarly {
			e.early = append(e.early, buf)
		}
		e.mu.Unlock()
		return
	}
	wake := e.frame(now, buf)
	e.unlock(now)
	if wake != wire.StreamNone && e.cfg.Readable != nil {
		e.cfg.Readable(wake)
	}
}

// frame steps the receiver with one frame and returns the stream whose
// consumer has something to do.
func (e *End) frame(now time.Time, buf []byte) (wake wire.Stream) {
	f, err := e.frameIn.Open(buf)
	switch {
	case err == wire.ErrFrameTag:
		if f, _ := wire.DecodeFrame(buf); f.Attach < e.recv.attach {
			e.counts.Older++ // under a fenced attach's key
		} else {
			e.counts.Tag++
		}
		return 0
	case err != nil:
		e.breach()
		return 0
	}
	before := e.recv.nextSeq
	switch e.recv.onFrame(now, f) {
	case frameDuplicate:
		e.counts.Duplicates++
		return 0
	case frameOlder:
		e.counts.Older++
		return 0
	case frameBreach:
		e.breach()
	}
	e.heard = now
	if e.recv.nextSeq == before {
		return 0
	}
	e.takeExit()
	for st := range e.recv.streams {
		if s := &e.recv.streams[st]; s.open && (len(s.queue) > 0 || s.eof) {
			e.cond[st].Broadcast()
		}
	}
	e.cond[wire.StreamNone].Broadcast()
	return f.Stream
}

func (e *End) takeExit() {
	if e.recv.exit == nil || e.exited != nil || e.failure != nil {
		return
	}
	var x wire.Exit
	if err := wire.DecodeReply(e.recv.exit.Payload, &x); err != nil || x.Outcome.Kind == "" {
		x.Outcome = wire.Outcome{Kind: wire.Unknown}
	}
	e.exited = &x
	close(e.done)
	e.wakeAll()
}

// breach counts a frame or message against the channel; at the bound it ends.
func (e *End) breach() {
	e.counts.Protocol++
	if e.counts.Protocol > MaxProtocolErrors {
		e.fail(wire.Errorf(wire.CodeChannelEnded,
			"the other end broke the protocol more than %d times", MaxProtocolErrors).
			With("outcome", string(wire.LimitExceeded)).With("limit", "protocol_errors"))
	}
}

// Stored implements Handler.
func (e *End) Stored(id, streamSeq uint64) {
	e.mu.Lock()
	if e.closed || !e.started {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	e.send.onStored(now, id, streamSeq)
	e.unlock(now)
}

// Refused implements Handler.
func (e *End) Refused(id uint64, _ RefuseReason) {
	e.mu.Lock()
	if e.closed || !e.started {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	e.send.onRefused(now, id)
	e.unlock(now)
}

// ControlMessage takes a message from the control subject.
func (e *End) ControlMessage(buf []byte) {
	if len(buf) == 0 {
		return
	}
	if wire.ControlKind(buf[0]) == wire.ControlFrame {
		e.Frame(buf[1:])
		return
	}
	e.mu.Lock()
	if e.closed || !e.started {
		e.mu.Unlock()
		return
	}
	now := time.Now()
	e.control(now, buf)
	e.unlock(now)
}

func (e *End) control(now time.Time, buf []byte) {
	_, attach, err := wire.PeekChannel(buf)
	if err != nil {
		e.breach()
		return
	}
	if attach != e.reqs.attach {
		if e.cfg.NextKey != nil && attach < e.reqs.attach {
			e.fence(buf, attach)
		}
		// Another attach's keys: cannot be checked here, and is not ours to count
		// against the channel.
		e.counts.Older++
		return
	}
	switch wire.ControlKind(buf[0]) {
	case wire.ControlCredit, wire.ControlProbe, wire.ControlState:
		var st wire.State
		if st, err = wire.DecodeState(buf, e.keyIn); err == nil {
			e.state(now, &st)
			if st.Kind == wire.ControlProbe {
				e.sendState(now, wire.ControlState)
				if e.stdinEnd && e.cfg.Side == Worker {
					e.sendStdinClosed()
				}
			}
		}
	case wire.ControlRequest, wire.ControlAnswer:
		var body []byte
		if body, err = wire.DecodeRequest(buf, e.keyIn); err == nil {
			e.requestOrAnswer(now, wire.ControlKind(buf[0]), body)
		}
	case wire.ControlFenced:
		if _, err = wire.DecodeFenced(buf, e.keyIn); err == nil && e.cfg.Side == Client {
			e.fail(wire.Errorf(wire.CodeFenced, "another client has attached to the channel and holds it now"))
		}
	case wire.ControlStdinClosed:
		var taken uint64
		if taken, err = wire.DecodeStdinClosed(buf, e.keyIn); err == nil && e.cfg.Side == Client && !e.stdinEnd {
			e.stdinEnd, e.closedAt = true, taken
			e.send.discard(now, wire.Stdin)
			e.cond[wire.Stdin].Broadcast()
		}
	default:
		err = wire.ErrControlKind
	}
	switch err {
	case nil:
	case wire.ErrControlTag:
		e.counts.Tag++
	default:
		e.breach()
	}
}

func (e *End) stdinClosed() error {
	return wire.Errorf(wire.CodeStdinClosed, "the command closed its stdin after it took %d bytes", e.closedAt).
		With("taken", strconv.FormatUint(e.closedAt, 10))
}

// state takes the other end's CREDIT, PROBE or STATE.
func (e *End) state(now time.Time, st *wire.State) {
	if st.Counter <= e.send.counter {
		return // a replay says nothing, not even that the other end lives
	}
	e.heard = now
	if !e.send.onState(now, st) {
		e.breach()
		return
	}
	e.recv.heardLast(now, st.LastSeq)
	e.written = max(e.written, st.Written)
	for i := range e.send.streams {
		if s := &e.send.streams[i]; s.open && e.send.room(wire.Stream(i)) > 0 {
			e.cond[i].Broadcast()
		}
	}
}

// AppendProbe appends this end's PROBE to a keepalive message and returns it;
// an end that has not started appends nothing.
func (e *End) AppendProbe(b []byte) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.started || e.closed || e.exited != nil {
		return b
	}
	return e.appendState(time.Now(), b, wire.ControlProbe)
}

// AnswerProbe takes a PROBE of a keepalive and appends this end's answer to b:
// its STATE, and STDIN_CLOSED if that holds; FENCED for an older attach.
func (e *End) AnswerProbe(b, probe []byte) []byte {
	e.mu.Lock()
	now := time.Now()
	defer e.unlock(now)
	if !e.started || e.closed {
		return b
	}
	if _, attach, err := wire.PeekChannel(probe); err == nil && attach < e.reqs.attach {
		return wire.AppendFenced(b, e.cfg.Channel, attach, e.keyOut)
	}
	st, err := wire.DecodeState(probe, e.keyIn)
	if err != nil {
		e.counts.Tag++
		return b
	}
	e.state(now, &st)
	b = e.appendState(now, b, wire.ControlState)
	if e.stdinEnd {
		e.counter++
		b = wire.AppendStdinClosed(b, e.cfg.Channel, e.reqs.attach, e.counter, e.closedAt, e.keyOut)
	}
	return b
}

func (e *End) requestOrAnswer(now time.Time, kind wire.ControlKind, body []byte) {
	if kind == wire.ControlAnswer {
		var a wire.Answer
		if json.Unmarshal(body, &a) == nil {
			e.reqs.answered(a)
		}
		return
	}
	var r wire.Request
	if err := wire.DecodeStrict(body, wire.MaxRequest, &r); err != nil {
		e.breach()
		return
	}
	if r.Verb == wire.VerbRepair {
		e.send.repair(r.From, r.To)
		return
	}
	if r.Verb == wire.VerbAttach && e.cfg.NextKey != nil {
		e.attachRequest(now, r)
		return
	}
	answer, ok := e.reqs.recall(r.N)
	if !ok && e.reqs.forgotten(r.N) {
		return
	}
	if !ok {
		e.heard = now
		answer = e.obey(r)
		e.reqs.remember(answer)
	}
	b, err := wire.AppendRequest(nil, wire.ControlAnswer, e.cfg.Channel, e.reqs.attach, wire.Encode(answer), e.keyOut)
	if err == nil {
		e.outbox = append(e.outbox, outMsg{payload: b})
	}
}

func (e *End) obey(r wire.Request) wire.Answer {
	if e.cfg.Request == nil {
		return wire.Answer{N: r.N, Error: wire.Errorf(wire.CodeInvalidArgument, "this end takes no control requests")}
	}
	a := e.cfg.Request(r)
	a.N = r.N
	return a
}
