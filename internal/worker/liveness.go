package worker

import (
	"context"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// missedKeepalives make a client detached.
const missedKeepalives = 3

// presence is how a worker sees a channel's client.
type presence uint8

const (
	attached presence = iota + 1
	detached          // has missed its keepalives; may come back
	lost              // and did not within the grace
)

// judge says what to think of a client that was last heard at heard. It is pure.
// Silence counts while the worker could hear: from upSince on, when its own
// connection came up.
func judge(now, heard, upSince time.Time, keepalive time.Duration, d *wire.OnDisconnect) presence {
	if upSince.After(heard) {
		heard = upSince
	}
	away := now.Sub(heard) - missedKeepalives*keepalive
	grace := wire.DefaultKillAfter
	if d != nil && d.AfterMS > 0 {
		grace = time.Duration(d.AfterMS) * time.Millisecond
	}
	switch {
	case away <= 0:
		return attached
	case d != nil && d.Policy == wire.Keep, away <= grace:
		return detached
	}
	return lost
}

// sweep ends the commands whose clients are lost, until ctx ends. One timer
// serves all channels.
func (w *Worker) sweep(ctx context.Context) {
	tick := time.NewTicker(w.cfg.Limits.Keepalive / 5)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if since := w.upSince.Load(); since != nil {
				w.sweepOnce(now, *since)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) sweepOnce(now, upSince time.Time) {
	for _, c := range w.table.all() {
		if judge(now, c.end.Heard(), upSince, w.cfg.Limits.Keepalive, c.exec.OnDisconnect) == lost {
			c.fate.ask(wire.Outcome{Kind: wire.ClientLost}, c.grace())
		}
	}
}

// keepalive answers the probes of one client process: each with the state of
// its channel, or GONE for one that the tenant has not here.
func (w *Worker) keepalive(tenant, _ string, body []byte, reply func([]byte)) {
	out := make([]byte, 0, len(body))
	for n := 0; len(body) > 0 && n < wire.KeepaliveMax; n++ {
		msg, rest, err := wire.SplitKeepalive(body)
		if err != nil {
			break
		}
		body = rest
		if wire.ControlKind(msg[0]) != wire.ControlProbe {
			continue
		}
		id, _, err := wire.PeekChannel(msg)
		if err != nil {
			break
		}
		before := len(out)
		if c := w.table.channel(id, tenant); c != nil {
			out = c.end.AnswerProbe(out, msg)
		}
		if len(out) == before {
			out = wire.AppendGone(out, id)
		}
	}
	reply(out)
}
