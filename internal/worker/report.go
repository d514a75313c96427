package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// report tells the coordinators how a channel ended until one has answered.
func (w *Worker) report(ctx context.Context, c *channel, o wire.Outcome, totals wire.Totals) {
	body := wire.Encode(wire.EndedRequest{
		Instance: w.instance, Tenant: c.order.Tenant, Lease: c.order.Lease, Channel: c.order.Channel,
		Outcome: o, Totals: totals,
	})
	subject := subjects.ToCoordinator(w.cfg.ID, subjects.WREnded)
	for gap := retryMin; ; gap = min(2*gap, retryMax) {
		err := w.reportOnce(ctx, subject, body)
		switch code := wire.CodeOf(err); {
		case err == nil || ctx.Err() != nil:
			return
		case code == wire.CodeNotFound:
			c.log.Info().Msg("no coordinator has a record of the channel that ended")
			return
		case code == wire.CodeInvalidArgument, code == wire.CodePermissionDenied:
			c.log.Error().Err(err).Msg("the end of a channel cannot be put on record")
			return
		}
		c.log.Debug().Err(err).Msg("the end of a channel is not on record yet")
		select {
		case <-time.After(gap/2 + rand.N(gap)):
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) reportOnce(ctx context.Context, subject string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := w.conn.Request(ctx, subject, body)
	return err
}
