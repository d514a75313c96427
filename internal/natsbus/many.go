package natsbus

import "context"

// RequestMany sends data and hands every answer to next, in order, until next
// returns false. It returns early with the errors of Request; an answer that is
// an error ends it too. Without a deadline it waits 10 s in all.
func (c *Conn) RequestMany(ctx context.Context, subject string, data []byte, next func(Msg) bool) error {
	if err := c.checkOut(subject, data); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	ctx, done := c.endedByDisconnect(ctx)
	defer done()
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	if err != nil {
		return outError(err)
	}
	// It fails only when the connection has ended it already.
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(maxPendingMsgs, maxPendingBytes); err != nil {
		return outError(err)
	}
	if err := c.nc.PublishRequest(subject, sub.Subject, data); err != nil {
		return outError(err)
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return requestError(ctx, err)
		}
		if err := serviceError(msg); err != nil {
			return err
		}
		if !next(Msg{Subject: msg.Subject, Data: msg.Data, header: msg.Header, c: c}) {
			return nil
		}
	}
}

// endedByDisconnect returns a context that a disconnect ends; the caller owes
// the call of done.
func (c *Conn) endedByDisconnect(parent context.Context) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	p := &pending{cancel: cancel}
	c.waitMu.Lock()
	c.waiting[p] = struct{}{}
	c.waitMu.Unlock()
	return ctx, func() {
		c.waitMu.Lock()
		delete(c.waiting, p)
		c.waitMu.Unlock()
		cancel(nil)
	}
}
