package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/gate"
	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// channels opens channels through the gate and records their ends.
type channels struct {
	store    *store
	leases   *leases
	fleet    *fleet
	orders   *orders
	logs     *logs
	limits   Limits
	disabled []string // plugins
	later    *crew    // work that goes on after an answer
	log      zerolog.Logger

	mu     sync.Mutex
	claims map[string]channel.Record // by key: counted at check 8, not on record yet
}

func channelKey(tenant, lease string, id uuid.UUID) string {
	return tenant + "." + lease + "." + id.String()
}

func keyOf(r channel.Record) string { return channelKey(r.Tenant, r.Lease, r.ID) }

// opening is one open on its way through the gate.
type opening struct {
	req    wire.OpenRequest
	mode   wire.Mode
	tenant string
	key    string
	repeat *entry[channel.Record] // the record, if there is one already
}

// open is api open and execute.
func (c *channels) open(mode wire.Mode) func(context.Context, subjects.Subject, []byte) (any, error) {
	return func(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
		o := opening{mode: mode, tenant: to.Tenant}
		if err := wire.DecodeStrict(body, wire.MaxOpenBody, &o.req); err != nil {
			return nil, err
		}
		o.key = channelKey(o.tenant, o.req.Lease, o.req.Channel)
		defer c.unclaim(o.key)
		l, err := gate.Check(c.input(ctx, &o))
		if err != nil {
			return nil, c.unknownWorker(ctx, o.tenant, o.req.Lease, err)
		}
		if o.repeat != nil {
			return c.again(ctx, *o.repeat, o)
		}
		home := channel.Home{
			Worker: l.Place.Worker, Instance: c.fleet.instance(l.Place.Worker, l.Place.Instance),
			Route: l.Place.Route, Epoch: l.Epoch,
		}
		rec := channel.New(time.Now(), o.tenant, l.ID, o.req.Channel, mode, o.req.Body, home, wire.NewSecret())
		e, err := c.store.channels.create(ctx, o.key, rec)
		if errors.Is(err, errFenced) {
			// Another copy of this request was first.
			e, ok, err := c.store.channels.load(ctx, o.key)
			if err != nil || !ok {
				return nil, gate.Undecided()
			}
			return c.again(ctx, e, o)
		}
		if err != nil {
			return nil, gate.Undecided()
		}
		return c.start(ctx, e, l, o)
	}
}

// input gathers what checks 1 to 8 ask for, each when it is asked for.
func (c *channels) input(ctx context.Context, o *opening) gate.Input {
	in := c.facts(ctx, o.tenant, o.req.Lease, o.req.Epoch)
	in.Mode, in.Arguments = o.mode, o.check
	in.Quota = func(lease.Record) error { return c.quota(o) }
	return in
}

// facts is what checks 2 to 7 ask for, of a duplex channel.
func (c *channels) facts(ctx context.Context, tenant, leaseID string, epoch wire.Epoch) gate.Input {
	return gate.Input{
		Mode: wire.ModeDuplex, Tenant: tenant, Epoch: epoch, Now: time.Now(),
		Lease: func() (*lease.Record, error) {
			e, err := c.leases.find(ctx, tenant, leaseID)
			if err != nil {
				return nil, err
			}
			if e.rec.CheckUse(time.Now(), epoch) != nil {
				// Perhaps only the table is behind.
				fresh, ok, err := c.store.leases.load(ctx, leaseKey(tenant, leaseID))
				if err != nil {
					return nil, err
				}
				if ok {
					e = fresh
				}
			}
			c.introduce(ctx, e.rec.Place)
			return &e.rec, nil
		},
		Driver:     c.driver,
		Capability: c.capability,
		Disabled:   func(plugin string) bool { return slices.Contains(c.disabled, plugin) },
	}
}

// check is gate check 1.
func (o *opening) check() error {
	if err := wire.CheckLeaseID(o.req.Lease); err != nil {
		return err
	}
	if err := wire.CheckChannelID(o.req.Channel); err != nil {
		return err
	}
	if err := checkCredit(o.req.Credit); err != nil {
		return err
	}
	e, err := wire.DecodeExec(o.req.Body)
	if err != nil {
		return err
	}
	if e.Mode != o.mode {
		return wire.Errorf(wire.CodeInvalidArgument, "mode is %q in a request for %q", e.Mode, o.mode)
	}
	return nil
}

func checkCredit(c wire.DownCredit) error {
	if min(c.Stdout, c.Stderr, c.FrameLimit) == 0 {
		return wire.Errorf(wire.CodeInvalidArgument, "credit has a limit of 0, with which nothing could be sent")
	}
	return nil
}

// introduce asks a worker that this coordinator has not heard of for its
// description, which checks 4 and 5 need.
func (c *channels) introduce(ctx context.Context, p lease.Place) {
	if c.fleet.instance(p.Worker, "") == "" && p.Worker != "" {
		c.fleet.describe(ctx, registry.Target{Worker: p.Worker, Instance: p.Instance})
	}
}

// unknownWorker turns the refusal of check 4 into that of check 10 when its
// reason is that the worker is gone and nothing of it is known.
func (c *channels) unknownWorker(ctx context.Context, tenant, leaseID string, err error) error {
	if wire.CodeOf(err) != wire.CodeDriverNotRegistered {
		return err
	}
	e, findErr := c.leases.find(ctx, tenant, leaseID)
	if findErr == nil && c.fleet.instance(e.rec.Place.Worker, "") == "" {
		return gate.WorkerNotRunning()
	}
	return err
}

func (c *channels) driver(l lease.Record) (d gate.Driver) {
	c.fleet.with(func(t *registry.Table, _ time.Time) {
		w, _ := t.Describe(l.Place.Worker)
		for _, p := range w.Providers {
			if p.Driver == l.Sandbox.Driver && p.Driver != "" {
				d.Registered = true
				d.Duplex = d.Duplex || p.Duplex
			}
		}
	})
	return d
}

func (c *channels) capability(l lease.Record, want wire.Capability) (have gate.Capability, err error) {
	c.fleet.with(func(t *registry.Table, _ time.Time) {
		have.Declared, have.Verified = t.Has(l.Place.Worker, l.Place.Provider, want)
	})
	return have, nil
}

// quota is gate check 8. A repeated open takes no second place.
func (c *channels) quota(o *opening) error {
	if e, ok := c.store.channels.peek(o.key); ok {
		o.repeat = &e
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ofLease, ofTenant := 0, 0
	add := func(key string, r channel.Record) bool {
		if r.Tenant == o.tenant && r.State != channel.Ended && key != o.key {
			ofTenant++
			if r.Lease == o.req.Lease {
				ofLease++
			}
		}
		return false
	}
	for k, r := range c.claims {
		if _, onRecord := c.store.channels.peek(k); !onRecord {
			add(k, r)
		}
	}
	c.store.channels.count(add)
	switch {
	case ofLease >= c.limits.ChannelsPerLease:
		return gate.RouteBusy(c.limits.ChannelsPerLease)
	case ofTenant >= c.limits.ChannelsPerTenant:
		return gate.QuotaExceeded("channels", int64(c.limits.ChannelsPerTenant))
	case !c.logs.room(o.tenant, int64(ofTenant+1)*c.limits.ChannelLogBytes):
		return gate.LogFull()
	}
	c.claims[o.key] = channel.Record{Tenant: o.tenant, Lease: o.req.Lease}
	return nil
}

// atWork reports whether this coordinator has an open of a channel on its way.
func (c *channels) atWork(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, claimed := c.claims[key]
	return claimed
}

func (c *channels) unclaim(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.claims, key)
}

// again answers a repeated open from the record of the first.
func (c *channels) again(ctx context.Context, e entry[channel.Record], o opening) (any, error) {
	if err := e.rec.Matches(o.req.Body, o.mode); err != nil {
		return nil, err
	}
	// A repeat is rare, and the table may be behind the channel's end.
	if _, _, err := c.store.channels.load(ctx, o.key); err != nil {
		return nil, gate.Undecided()
	}
	e, err := c.store.channels.wait(ctx, o.key, func(r channel.Record) bool { return r.State != channel.Opening })
	if wire.CodeOf(err) != "" {
		return nil, gate.Undecided()
	}
	if err != nil {
		return nil, tooLate("the channel is still being opened; ask again with the same id")
	}
	if err := refusalOnRecord(e.rec); err != nil {
		return nil, err
	}
	return e.rec.Reply(), nil
}
