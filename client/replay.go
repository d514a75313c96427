package client

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Numbers of reading a channel's log.
const (
	replayTimeout = 5 * time.Second // for the answers to one request
	replayTries   = 5               // requests without an answer
	// A worker has at most so many frames of a stream unacknowledged: what a reader
	// may still need is among the last ones.
	stdoutFrames = 40
	stderrFrames = 16
)

// readLog calls take with every stored frame of what came down on a channel, from
// the oldest on, in no certain order.
func (c *Client) readLog(ctx context.Context, at place, take func(frame []byte)) error {
	req := wire.ReplayRequest{Lease: at.lease, Channel: at.id, Direction: subjects.Down.String(), MaxBytes: wire.MaxReplay}
	for tries := 0; ; {
		next, n, err := c.readSome(ctx, req, take)
		switch code := wire.CodeOf(err); {
		case err == nil && n == 0:
			return nil
		case err == nil:
			req.FromStreamSeq, tries = next, 0
			continue
		case code != CodeUnavailable && code != CodeDeadlineExceeded, tries+1 == replayTries:
			return err
		}
		tries++
		if !c.pause(ctx, repeatPause) {
			return err
		}
	}
}

// readSome is one request and its answers.
func (c *Client) readSome(ctx context.Context, req wire.ReplayRequest, take func([]byte)) (next uint64, n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	err = c.bus.RequestMany(ctx, subjects.Replay(c.opts.Tenant), wire.Encode(req), func(body []byte, header func(string) string) bool {
		if s := header(wire.HeaderNextStreamSeq); s != "" {
			next, _ = strconv.ParseUint(s, 10, 64)
			return false
		}
		n++
		take(body)
		return true
	})
	if err == nil && n > 0 && next <= req.FromStreamSeq {
		err = wire.Errorf(CodeInternal, "the answer to a replay does not say where to go on")
	}
	return next, n, typed(ctx, "reading the log", err)
}

// replay hands the frames in the log to the channel's end: all that there is of a
// channel whose worker is gone.
func (c *Channel) replay(ctx context.Context) {
	if err := c.c.readLog(ctx, c.place, c.end.Frame); err != nil && ctx.Err() == nil {
		c.c.opts.Log.Warn().Err(err).Str("channel", c.ID()).Msg("the channel's log was not read to its end")
	}
}

// readOn is a channel that has ended and that no worker knows any more: the
// recorded end, and of the output what the log still has.
func (c *Client) readOn(ctx context.Context, at place, keyDown wire.Key, info ChannelInfo, o AttachOptions, so options) (*Channel, error) {
	left := map[uint64]logged{}
	key := wire.NewFrameKey(keyDown, subjects.Down)
	err := c.readLog(ctx, at, func(b []byte) {
		if f, err := key.Open(b); err == nil && f.Attach == 0 && f.Epoch == at.epoch.N {
			left[f.Seq] = logged{f, b}
		}
	})
	if err != nil {
		return nil, err
	}
	down, kept := remains(left, info.Totals)
	if f := o.From; f != nil {
		if f.Stdout > int64(down.Stdout.Sent) || f.Stderr > int64(down.Stderr.Sent) {
			return nil, wire.Errorf(CodeInvalidArgument, "from is beyond what the command has written")
		}
		down.Stdout.Acked = max(down.Stdout.Acked, uint64(f.Stdout))
		down.Stderr.Acked = max(down.Stderr.Acked, uint64(f.Stderr))
	}
	ch, err := c.onPort(nowhere{}, at, wire.ModeDuplex, so)
	if err != nil {
		return nil, err
	}
	ch.holding = holding{keyDown: keyDown}
	began := Position{Stdout: int64(down.Stdout.Acked), Stderr: int64(down.Stderr.Acked)}
	if info.Totals != nil {
		began.Stdin = int64(info.Totals.Stdin)
	}
	ch.holding.begin(began, o.From)
	ch.setRecord(info, true)
	ch.end.Start(duplex.Grant{KeyDown: keyDown, Resume: &duplex.Resume{Up: wire.UpPosition{NextSeq: 1, Closed: true}, Down: down}})
	for _, f := range kept {
		ch.end.Frame(f.raw)
	}
	if len(kept) == 0 {
		ch.byRecordNow()
	}
	ch.startPumps()
	if c.crew.start(ch.watch) == nil {
		ch.end.Fail(errClosed())
		ch.pumps.Wait()
		ch.free()
		return nil, errClosed()
	}
	return ch, nil
}

// logged is a frame from the log.
type logged struct {
	wire.Frame
	raw []byte
}

// remains picks from the log what a reader may still need, and says where the
// streams go on then: of each the last frames that join.
func remains(left map[uint64]logged, totals *wire.Totals) (down wire.DownPosition, kept []logged) {
	var byStream [4][]logged
	var eof [4]*logged
	for _, f := range left {
		switch f.Type {
		case wire.FrameStdout, wire.FrameStderr:
			byStream[f.Stream] = append(byStream[f.Stream], f)
		case wire.FrameEOF:
			eof[f.Stream] = &f
			kept = append(kept, f)
		default:
			kept = append(kept, f)
		}
	}
	bySeq := func(a, b logged) int { return cmp.Compare(a.Seq, b.Seq) }
	position := func(st wire.Stream, most int, total uint64) wire.StreamPosition {
		frames := byStream[st]
		slices.SortFunc(frames, bySeq)
		n := len(frames)
		for n > 0 && len(frames)-n < most && (n == len(frames) || frames[n-1].End() == frames[n].Offset) {
			n--
		}
		frames = frames[n:]
		kept = append(kept, frames...)
		p := wire.StreamPosition{Acked: total, Sent: total}
		if len(frames) > 0 {
			p.Acked, p.Sent = frames[0].Offset, frames[len(frames)-1].End()
		} else if eof[st] != nil {
			p.Acked, p.Sent = eof[st].Offset, eof[st].Offset
		}
		p.Ended = eof[st] == nil && totals != nil && p.Sent == total
		return p
	}
	var t wire.Totals
	if totals != nil {
		t = *totals
	}
	down.Stdout = position(wire.Stdout, stdoutFrames, t.Stdout)
	down.Stderr = position(wire.Stderr, stderrFrames, t.Stderr)
	slices.SortFunc(kept, bySeq)
	for i, f := range kept {
		if i == 0 {
			down.AckedSeq = f.Seq - 1
		} else if f.Seq > down.LastSeq+1 {
			down.Gone = append(down.Gone, [2]uint64{down.LastSeq + 1, f.Seq - 1})
		}
		down.LastSeq = f.Seq
	}
	return down, kept
}
