package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// How many workers are asked at once for a description or a sign of life.
const (
	askAtOnce  = 32
	judgeEvery = 250 * time.Millisecond
)

// fleet is the registry with its lock, its ears and its probes.
type fleet struct {
	orders    *orders
	name      string
	lostAfter time.Duration
	log       zerolog.Logger
	adopted   func(worker string) []string // leases on record for a worker; called with mu held
	ask       *crew

	mu      sync.Mutex // guards what follows; nothing waits under it
	table   *registry.Table
	asked   map[registry.Target]bool      // descriptions on their way
	orphans map[registry.Target]time.Time // instances on record that nobody was heard of, since when
}

func newFleet(c Config, o *orders, adopted func(string) []string) *fleet {
	return &fleet{
		orders: o, name: c.Name, lostAfter: c.WorkerLostAfter, adopted: adopted,
		log: c.Log.With().Str("part", "registry").Logger(), ask: newCrew(askAtOnce),
		table: registry.New(registry.Config{BeatPeriod: beatPeriod, Missed: missedBeats, MaxWorkers: c.Limits.Workers}),
		asked: map[registry.Target]bool{}, orphans: map[registry.Target]time.Time{},
	}
}

// with calls f with the table locked. f must not wait.
func (f *fleet) with(do func(t *registry.Table, now time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.table, time.Now())
}

// busUp and busDown follow the connection that beats come in on; its being
// down is no worker's fault.
func (f *fleet) busUp() { f.with(func(t *registry.Table, now time.Time) { t.BusUp(now) }) }

func (f *fleet) busDown() {
	f.with(func(t *registry.Table, _ time.Time) {
		t.BusDown()
		clear(f.orphans)
	})
}

// run probes who is silent until ctx is done.
func (f *fleet) run(ctx context.Context) {
	defer f.ask.close()
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			var due []registry.Target
			f.with(func(t *registry.Table, now time.Time) { due = t.DueProbes(now) })
			for _, at := range due {
				f.ask.try(func(context.Context) {
					ok := f.probe(ctx, at)
					f.with(func(t *registry.Table, now time.Time) { t.Probed(now, at, ok) })
				})
			}
		case <-ctx.Done():
			return
		}
	}
}

// beat takes one heartbeat, in the subscription's callback.
func (f *fleet) beat(ctx context.Context, m natsbus.Msg) {
	to, err := subjects.Parse(m.Subject)
	var b wire.Beat
	if err == nil {
		err = wire.DecodeStrict(m.Data, wire.MaxBeat, &b)
	}
	if err != nil {
		f.log.Debug().Msg("a message on a heartbeat subject is none")
		return
	}
	at := registry.Target{Worker: to.Worker, Instance: b.Instance}
	wanted := false
	f.with(func(t *registry.Table, now time.Time) {
		res := t.Beat(now, to.Worker, b)
		if res == registry.BeatNeedDescription && !f.asked[at] && len(f.asked) < askAtOnce {
			f.asked[at] = true
			wanted = true
		}
		delete(f.orphans, at)
		if res == registry.BeatGoodbye {
			f.log.Info().Str("worker", at.Worker).Str("reason", b.Reason).Msg("worker said goodbye")
		}
	})
	if wanted && f.ask.try(func(context.Context) { f.describe(ctx, at) }) != crewTaken {
		f.with(func(*registry.Table, time.Time) { delete(f.asked, at) })
	}
}

// describe asks an instance that beats for its description.
func (f *fleet) describe(ctx context.Context, at registry.Target) {
	defer f.with(func(*registry.Table, time.Time) { delete(f.asked, at) })
	ctx, cancel := context.WithTimeout(ctx, 2*probeTimeout)
	defer cancel()
	var body json.RawMessage
	order := wire.ProbeOrder{OrderHead: head("", at.Worker, at.Instance, "", wire.Epoch{})}
	err := f.orders.send(ctx, at.Worker, subjects.WKInventory, order, nil, &body)
	if err == nil {
		_, err = f.register(ctx, subjects.Subject{Worker: at.Worker}, body)
	}
	if err != nil {
		f.log.Info().Err(err).Str("worker", at.Worker).Str("instance", at.Instance).Msg("a worker that beats is not described")
	}
}

// probe reports whether the very instance answers.
func (f *fleet) probe(ctx context.Context, at registry.Target) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var reply wire.ProbeReply
	order := wire.ProbeOrder{OrderHead: head("", at.Worker, at.Instance, "", wire.Epoch{})}
	err := f.orders.send(ctx, at.Worker, subjects.WKProbe, order, nil, &reply)
	return err == nil && reply.Instance == at.Instance
}

// register is wr register.
func (f *fleet) register(ctx context.Context, to subjects.Subject, body []byte) (any, error) {
	req, err := decodeRegister(body)
	if err != nil {
		return nil, err
	}
	if req.Worker != to.Worker {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "worker in the body is not the one of the subject")
	}
	hash := descriptionOf(body)
	var reg registry.Registration
	f.with(func(t *registry.Table, now time.Time) { reg, err = t.Register(now, req, hash) })
	for err == nil && reg.Probe != nil {
		holder := *reg.Probe
		if f.probe(ctx, holder) {
			f.with(func(t *registry.Table, now time.Time) { t.Heard(now, holder) })
			f.log.Warn().Str("worker", req.Worker).Str("holder", holder.Worker).Msg("a second instance was refused; the first answers")
			return nil, registry.Conflict(req)
		}
		f.with(func(t *registry.Table, now time.Time) { reg, err = t.Takeover(now, req, hash, holder) })
	}
	if err != nil {
		f.log.Warn().Err(err).Str("worker", req.Worker).Int("protocol", req.ProtocolVersion).Msg("a worker was refused")
		return nil, err
	}
	at := registry.Target{Worker: req.Worker, Instance: req.Instance}
	f.with(func(t *registry.Table, _ time.Time) {
		delete(f.orphans, at)
		// Read here, not before: a lease that ends meanwhile gives its slot back
		// after this, and not before it is taken.
		for _, id := range f.adopted(req.Worker) {
			t.Adopt(at, id)
		}
	})
	f.log.Info().Str("worker", req.Worker).Str("instance", req.Instance).Str("plugin", req.PluginID).Int("slots", req.Slots).Msg("worker registered")
	return wire.RegisterReply{Coordinator: f.name, BeatMS: beatPeriod.Milliseconds(), MinVersion: wire.Version, MaxVersion: wire.Version}, nil
}

// decodeRegister lets the version speak first: a newer worker's body may have
// fields that this version does not know.
func decodeRegister(body []byte) (wire.RegisterRequest, error) {
	var req wire.RegisterRequest
	err := wire.DecodeStrict(body, wire.MaxOpenBody, &req)
	if err == nil {
		return req, nil
	}
	var old struct {
		ProtocolVersion int    `json:"protocolVersion"`
		Worker          string `json:"worker"`
		Instance        string `json:"instance"`
	}
	if len(body) <= wire.MaxOpenBody && json.Unmarshal(body, &old) == nil && old.ProtocolVersion > wire.Version {
		return wire.RegisterRequest{ProtocolVersion: old.ProtocolVersion, Worker: old.Worker, Instance: old.Instance}, nil
	}
	return req, err
}

// descriptionOf is what a worker's beats carry of the body it registered with.
func descriptionOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// place names the workers that may take a lease, in the order to try.
func (f *fleet) place(q registry.Query) (p registry.Placement) {
	f.with(func(t *registry.Table, now time.Time) { p = t.Place(now, q, rand.IntN) })
	return p
}

// heard notes an answer of an instance.
func (f *fleet) heard(at registry.Target) {
	f.with(func(t *registry.Table, now time.Time) { t.Heard(now, at) })
}

// instance is the one that holds the worker's id now, or otherwise when this
// coordinator has not heard of the worker.
func (f *fleet) instance(worker, otherwise string) (id string) {
	id = otherwise
	f.with(func(t *registry.Table, _ time.Time) {
		if d, ok := t.Describe(worker); ok {
			id = d.Instance
		}
	})
	return id
}

// live reports whether the very instance is heard.
func (f *fleet) live(at registry.Target) (ok bool) {
	f.with(func(t *registry.Table, now time.Time) {
		w, known := t.View(now, at.Worker)
		ok = known && w.Instance == at.Instance && (w.State == registry.StateLive || w.State == registry.StateDraining)
	})
	return ok
}

// lost says which of the instances on record may be written lost, and why. An
// instance that this coordinator never heard of, because it started later, is
// lost when it has been silent that long before this coordinator's own ears.
func (f *fleet) lost(onRecord map[registry.Target]bool) map[registry.Target]string {
	out := map[registry.Target]string{}
	f.with(func(t *registry.Table, now time.Time) {
		for _, l := range t.LostSince(now, f.lostAfter) {
			out[l.Target] = l.Reason
		}
		for at := range f.orphans {
			if !onRecord[at] {
				delete(f.orphans, at)
			}
		}
		for at := range onRecord {
			if d, ok := t.Describe(at.Worker); ok && d.Instance == at.Instance || out[at] != "" {
				delete(f.orphans, at)
				continue
			}
			since, ok := f.orphans[at]
			if !ok {
				f.orphans[at] = now
			} else if now.Sub(since) >= f.lostAfter {
				out[at] = "no contact with this instance since the coordinator started"
			}
		}
	})
	return out
}

// workers is op workers.
func (f *fleet) workers(_ context.Context, _ subjects.Subject, body []byte) (any, error) {
	if err := decodeList(body, &wire.ListRequest{}); err != nil {
		return nil, err
	}
	list := wire.WorkerList{Workers: []wire.Worker{}}
	f.with(func(t *registry.Table, now time.Time) { list.Workers = append(list.Workers, t.List(now)...) })
	return list, nil
}
