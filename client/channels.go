package client

import (
	"context"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// ChannelInfo is what the coordinators have on record of a channel.
type ChannelInfo = wire.Channel

// ListChannels lists the tenant's channels, recently ended ones too;
// of one lease unless that is "". Errors: INVALID_ARGUMENT, UNAVAILABLE.
func (c *Client) ListChannels(ctx context.Context, lease string) ([]ChannelInfo, error) {
	var out []ChannelInfo
	err := c.eachChannel(ctx, lease, func(ch ChannelInfo) bool {
		out = append(out, ch)
		return true
	})
	return out, err
}

// eachChannel calls f with the channels on record until f returns false.
func (c *Client) eachChannel(ctx context.Context, lease string, f func(ChannelInfo) bool) error {
	if lease != "" {
		if err := wire.CheckLeaseID(lease); err != nil {
			return err
		}
	}
	req := wire.ListRequest{Lease: lease}
	for {
		var reply wire.ChannelList
		if err := c.call(ctx, subjects.APIChannels, req, &reply); err != nil {
			return err
		}
		for _, ch := range reply.Channels {
			if !f(ch) {
				return nil
			}
		}
		if reply.Next == "" || reply.Next == req.Cursor {
			return nil
		}
		req.Cursor = reply.Next
	}
}

// GetChannel returns the record of a channel. lease may be "": the channel is
// then looked for among all of the tenant's. Errors: NOT_FOUND, INVALID_ARGUMENT.
func (c *Client) GetChannel(ctx context.Context, lease, channel string) (ChannelInfo, error) {
	id, err := channelID(channel)
	if err != nil {
		return ChannelInfo{}, err
	}
	if lease != "" {
		if err := wire.CheckLeaseID(lease); err != nil {
			return ChannelInfo{}, err
		}
		return c.record(ctx, lease, id)
	}
	info, found := ChannelInfo{}, false
	err = c.eachChannel(ctx, "", func(ch ChannelInfo) bool {
		if ch.ID == id {
			info, found = ch, true
		}
		return !found
	})
	if err == nil && !found {
		err = wire.Errorf(CodeNotFound, "there is no such channel; weft channel ls lists them")
	}
	return info, err
}

func channelID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return id, wire.Errorf(CodeInvalidArgument, "channel is not a UUID in its 36-character lower-case form")
	}
	return id, wire.CheckChannelID(id)
}

func (c *Client) record(ctx context.Context, lease string, id uuid.UUID) (ChannelInfo, error) {
	var reply wire.ChannelReply
	err := c.call(ctx, subjects.APIChannel, wire.ChannelRequest{Lease: lease, Channel: id}, &reply)
	return reply.Channel, err
}

// KillChannel ends the command of a channel, whoever holds it, and returns the
// record as it is then. The lease may be "" as in GetChannel. Errors: NOT_FOUND,
// INVALID_ARGUMENT, UNAVAILABLE.
func (c *Client) KillChannel(ctx context.Context, lease, channel string) (ChannelInfo, error) {
	info, err := c.GetChannel(ctx, lease, channel)
	if err != nil {
		return info, err
	}
	var reply wire.ChannelReply
	err = c.call(ctx, subjects.APIKill, wire.ChannelRequest{Lease: info.Lease, Channel: info.ID}, &reply)
	return reply.Channel, err
}
