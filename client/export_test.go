package client

// Subscriptions counts those of the client's connection.
func Subscriptions(c *Client) int { return c.bus.(*natsBus).NATS().NumSubscriptions() }

// Sent counts what the client's connection has sent.
func Sent(c *Client) (msgs, bytes uint64) {
	s := c.bus.(*natsBus).NATS().Stats()
	return s.OutMsgs, s.OutBytes
}
