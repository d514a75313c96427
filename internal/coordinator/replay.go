package coordinator

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// replaysAtOnce bounds the replays that are copied at once, of tenants and of
// workers each: every one holds up to wire.MaxReplay bytes of frames.
const replaysAtOnce = 16

// replayed is what answers a replay.
type replayed struct {
	frames []stored
	next   uint64 // stream sequence to go on from
	last   uint64 // frame sequence of the newest frame in the log, 0: none
}

// replay is rp replay: stored frames of either direction, for the tenant whose
// channel it is.
func (c *channels) replay(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	req, dir, err := decodeReplay(body)
	if err != nil {
		return nil, err
	}
	e, err := c.find(ctx, to.Tenant, req.Lease, req.Channel)
	if err != nil {
		return nil, err
	}
	return c.copyFrames(ctx, e.rec, dir, req)
}

// replayOwn is wr replay: what came up on a channel of the worker that asks.
func (c *channels) replayOwn(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	req, dir, err := decodeReplay(body)
	if err != nil {
		return nil, err
	}
	if dir != subjects.Up {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "direction is not up; what goes down the worker has sent itself")
	}
	e, err := c.findOwn(ctx, to.Worker, req)
	if err != nil {
		return nil, err
	}
	return c.copyFrames(ctx, e.rec, dir, req)
}

func decodeReplay(body []byte) (req wire.ReplayRequest, dir subjects.Dir, err error) {
	if err := wire.DecodeStrict(body, wire.MaxControlBody, &req); err != nil {
		return req, 0, err
	}
	if err := wire.CheckLeaseID(req.Lease); err != nil {
		return req, 0, err
	}
	if err := wire.CheckChannelID(req.Channel); err != nil {
		return req, 0, err
	}
	if req.MaxBytes < 1 || req.MaxBytes > wire.MaxReplay {
		return req, 0, wire.Errorf(wire.CodeInvalidArgument, "maxBytes is %d; it is 1 to %d", req.MaxBytes, wire.MaxReplay)
	}
	switch req.Direction {
	case subjects.Up.String():
		return req, subjects.Up, nil
	case subjects.Down.String():
		return req, subjects.Down, nil
	}
	return req, 0, wire.Errorf(wire.CodeInvalidArgument, "direction is neither up nor down")
}

// findOwn finds a channel by its lease and id alone. NOT_FOUND is the same for
// unknown and another worker's.
func (c *channels) findOwn(ctx context.Context, worker string, req wire.ReplayRequest) (entry[channel.Record], error) {
	for _, tenant := range c.logs.tenants {
		if e, ok := c.store.channels.peek(channelKey(tenant, req.Lease, req.Channel)); ok {
			return ownedBy(e, worker)
		}
	}
	// The table has every lease that runs, if not yet its newest channel.
	for _, tenant := range c.logs.tenants {
		if _, ok := c.store.leases.peek(leaseKey(tenant, req.Lease)); ok {
			e, err := c.find(ctx, tenant, req.Lease, req.Channel)
			if err != nil {
				return e, err
			}
			return ownedBy(e, worker)
		}
	}
	return entry[channel.Record]{}, channel.NotFound()
}

func ownedBy(e entry[channel.Record], worker string) (entry[channel.Record], error) {
	if e.rec.Home.Worker != worker {
		return entry[channel.Record]{}, channel.NotFound()
	}
	return e, nil
}

// copyFrames reads the frames that the request asks for. The newest frame is
// read from the log's leader, so that a reader who got stale frames can tell.
func (c *channels) copyFrames(ctx context.Context, r channel.Record, dir subjects.Dir, req wire.ReplayRequest) (any, error) {
	subject := logChannel(r).Data(dir)
	out := replayed{next: req.FromStreamSeq}
	var err error
	if out.frames, err = c.logs.batch(ctx, r.Tenant, subject, req.FromStreamSeq, req.MaxBytes); err != nil {
		return nil, c.noReplay(err)
	}
	if n := len(out.frames); n > 0 {
		out.next = out.frames[n-1].Seq + 1
	}
	newest, err := c.logs.last(ctx, r.Tenant, subject)
	if err != nil {
		return nil, c.noReplay(err)
	}
	if newest != nil {
		if f, err := wire.DecodeFrame(newest.Data); err == nil {
			out.last = f.Seq
		}
	}
	return out, nil
}

func (c *channels) noReplay(err error) error {
	if !errors.Is(err, errNoLog) {
		c.log.Warn().Err(err).Msg("read the log")
	}
	return wire.Errorf(wire.CodeUnavailable, "the log does not answer; ask again from the same place")
}

// replay sends stored frames, then the message that ends them. None of the
// headers that they were stored with goes out.
func (s *service) replay(reply string, r replayed) error {
	for _, f := range r.frames {
		msg := nats.NewMsg(reply)
		msg.Data = f.Data
		msg.Header.Set(wire.HeaderStreamSeq, strconv.FormatUint(f.Seq, 10))
		if err := s.nc.PublishMsg(msg); err != nil {
			return err
		}
	}
	end := nats.NewMsg(reply)
	end.Header.Set("Status", "204")
	end.Header.Set(wire.HeaderNextStreamSeq, strconv.FormatUint(r.next, 10))
	end.Header.Set(wire.HeaderLastFrameSeq, strconv.FormatUint(r.last, 10))
	return s.nc.PublishMsg(end)
}
