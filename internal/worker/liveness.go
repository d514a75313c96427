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

// awaySince is from when on a client counts as away that was last heard at heard
// and, unless said is zero, then said that it detaches. Silence counts while the
// worker could hear: from upSince on, when its own connection came up.
func awaySince(heard, said, upSince time.Time, keepalive time.Duration) time.Time {
	from, patience := heard, missedKeepalives*keepalive
	if !said.IsZero() {
		from, patience = said, 0
	}
	if upSince.After(from) {
		from = upSince
	}
	return from.Add(patience)
}

// judge says what to think of a client that counts as away since since. It is
// pure. A command that is to be kept is, unless that has a limit.
func judge(now, since time.Time, d *wire.OnDisconnect) presence {
	grace := wire.DefaultKillAfter
	kept := d != nil && d.Policy == wire.Keep && d.AfterMS == 0
	if d != nil && d.AfterMS > 0 {
		grace = time.Duration(min(d.AfterMS, maxGrace.Milliseconds()*3650)) * time.Millisecond
	}
	switch away := now.Sub(since); {
	case away <= 0:
		return attached
	case kept, away <= grace:
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
		_, said := c.audience.isAway()
		p := judge(now, awaySince(c.end.Heard(), said, upSince, w.cfg.Limits.Keepalive), c.exec.OnDisconnect)
		c.audience.seen(p == attached)
		if p == lost {
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
