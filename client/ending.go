package client

import (
	"context"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// recordEnded is the state of a channel record that has an outcome.
const recordEnded = "ended"

// recordGrace is how long bytes that are still under way are waited for once
// the coordinators' record says that the channel has ended.
const recordGrace = 2 * time.Second

// endRecord is what the coordinators say of an ended channel.
type endRecord struct {
	outcome Outcome
	totals  *wire.Totals
	attach  uint32 // the newest that took the channel, or tried to
	// gone: the worker answers and does not know the channel, so it sends nothing more.
	gone bool
}

// setRecord takes the coordinators' word; the first counts.
func (c *Channel) setRecord(rec wire.Channel, gone bool) {
	if rec.Outcome == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record == nil {
		c.record = &endRecord{outcome: *rec.Outcome, totals: rec.Totals, attach: rec.Attach, gone: gone}
		close(c.recorded)
	}
}

// awaitEnd waits for EXIT, for a failure, or, once the record says that the
// channel has ended, until neither the worker nor the log gives anything more.
func (c *Channel) awaitEnd(ctx context.Context) {
	select {
	case <-c.end.Done():
		return
	case <-c.recorded:
	}
	t := time.NewTicker(recordGrace)
	defer t.Stop()
	c.replay(ctx)
	for before := c.end.Received(); ; {
		select {
		case <-c.end.Done():
			return
		case <-t.C:
		}
		now := c.end.Received()
		switch {
		case now != before:
			c.replay(ctx) // there may be room for more now
			before = now
		case c.record.final() || c.starving():
			c.byRecordNow()
			return
		}
	}
}

// byRecordNow ends the channel with the record: nothing more will come.
func (c *Channel) byRecordNow() {
	if t := c.record.totals; t != nil {
		lost, _ := shortfall(c.end.Received(), *t)
		c.complete.Store(lost == 0)
	}
	c.end.Fail(c.record.failure())
}

// starving reports whether the caller has taken everything that came, so that
// it is not for want of a reader that nothing comes.
func (c *Channel) starving() bool {
	got := c.end.Received()
	return c.end.Consumed(wire.Stdout) == got.Stdout && c.end.Consumed(wire.Stderr) == got.Stderr
}

// final reports whether the worker cannot send any more.
func (r *endRecord) final() bool {
	return r.gone || r.outcome.Kind == WorkerLost || r.outcome.Kind == LeaseLost
}

// failure is what readers are told after what has come.
func (r *endRecord) failure() *wire.Error {
	layer := LayerOf(r.outcome, nil)
	switch r.outcome.Kind {
	case WorkerLost:
		return endError(CodeChannelEnded, layer, r.outcome, "the worker is lost, and output that had not arrived with it; the command is over on record")
	case Exited, Signaled:
		layer = LayerTransport
	}
	return endError(CodeChannelEnded, layer, r.outcome,
		"the coordinators' record says that the command has ended (%s); its last output and its end did not arrive", r.outcome)
}

// conclude decides what Wait returns, after EXIT or a failure.
func (c *Channel) conclude() result {
	exit, err := c.end.Exit()
	c.mu.Lock()
	rec := c.record
	c.mu.Unlock()
	switch {
	case exit != nil:
		return c.checked(exit.Outcome, exit.Totals)
	case rec != nil:
		return c.byRecord(rec)
	}
	return c.unseen(err)
}

// checked compares what came with what was sent.
func (c *Channel) checked(o Outcome, sent wire.Totals) result {
	lost, offset := shortfall(c.end.Received(), sent)
	if lost == 0 {
		return result{outcome: o}
	}
	out := Outcome{Kind: DataLost, Bytes: lost, Offset: offset, Code: o.Code}
	return result{out, endError(CodeChannelEnded, LayerTransport, out,
		"the command ended (%s), and %d bytes of its output from offset %d on did not arrive", o, lost, offset)}
}

// shortfall is how many bytes of the outputs are missing, and the offset in the
// first stream that misses some.
func shortfall(got, sent wire.Totals) (lost, offset int64) {
	for _, s := range [...]struct{ got, sent uint64 }{{got.Stdout, sent.Stdout}, {got.Stderr, sent.Stderr}} {
		if s.got >= s.sent {
			continue
		}
		if lost == 0 {
			offset = int64(s.got)
		}
		lost += int64(s.sent - s.got)
	}
	return lost, offset
}

// byRecord is the end that the coordinators have written, without the EXIT.
func (c *Channel) byRecord(rec *endRecord) result {
	if rec.totals == nil {
		out := rec.outcome
		if out.Kind == Exited || out.Kind == Signaled {
			// Nobody can say whether the output is whole, so this is no such end.
			out = Outcome{Kind: Unknown}
		}
		return result{out, rec.failure()}
	}
	r := c.checked(rec.outcome, *rec.totals)
	if r.outcome.Kind == DataLost && rec.attach > c.holding.attach && c.holding.attach > 0 {
		return result{Outcome{Kind: Unknown}, errFenced()}
	}
	if r.err != nil && rec.outcome.Kind == WorkerLost {
		return result{rec.outcome, rec.failure()}
	}
	return r
}

// unseen is an end of which only this side's failure is known.
func (c *Channel) unseen(err error) result {
	out := Outcome{Kind: Unknown}
	e := *wire.AsError(err)
	e.Details = map[string]string{detailLayer: string(LayerTransport)}
	for k, v := range wire.AsError(err).Details {
		e.Details[k] = v
	}
	switch kind := OutcomeKind(e.Details[detailOutcome]); kind {
	case LimitExceeded, Stalled:
		if c.fenced(context.Background()) {
			// What looked like a breach was meant for the new holder.
			return result{out, errFenced()}
		}
		// The worker knows nothing of it yet.
		if kind == LimitExceeded {
			e.Details[detailLayer] = string(LayerWorker)
		}
		out = Outcome{Kind: kind, Reason: e.Details["limit"]}
		c.killLater()
	}
	return result{out, &e}
}
