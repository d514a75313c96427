package registry

import (
	"slices"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// Registration is what became of a register request. If Probe is set, nothing
// is decided: probe that instance, then refuse with Conflict, or call Takeover
// with it, which may name the next one. Otherwise the instance is registered.
type Registration struct {
	Probe    *Target
	Replaced *Replaced // the instance that lost the worker id to this one, if any
}

// Replaced is an instance that lost its worker id to a newer one.
type Replaced struct {
	Target
	SameBoot bool // both ran on one boot of one host, so the old one is certainly gone
}

// Register takes the description of an instance. hash is what the worker's
// beats will call it, "" for no comparison. Errors: INVALID_ARGUMENT,
// UNSUPPORTED_VERSION (the worker is then listed as refused),
// QUOTA_EXCEEDED, CONFLICT for an instance that has said goodbye.
func (t *Table) Register(now time.Time, req wire.RegisterRequest, hash string) (Registration, error) {
	if err := t.checkVersion(now, req); err != nil {
		return Registration{}, err
	}
	if err := checkDescription(req); err != nil {
		return Registration{}, err
	}
	for _, holder := range [...]string{req.Worker, t.routes[req.Route]} {
		e, ok := t.workers[holder]
		if !ok || e.refused != "" || holder == req.Worker && e.instance == req.Instance {
			continue
		}
		if !e.gone && !e.watch.silent && t.state(now, e) != StateDead {
			e.watch.challenged = now
			return Registration{Probe: &Target{Worker: holder, Instance: e.instance}}, nil
		}
	}
	return t.admit(now, req, hash)
}

// Takeover registers req in place of silent, the instance that Register named
// and that did not answer a probe. CONFLICT if it was heard meanwhile; other
// errors as Register.
func (t *Table) Takeover(now time.Time, req wire.RegisterRequest, hash string, silent Target) (Registration, error) {
	if e, ok := t.workers[silent.Worker]; ok && e.instance == silent.Instance {
		if e.watch.contact.After(e.watch.challenged) {
			return Registration{}, Conflict(req)
		}
		e.watch.silent = true
	}
	return t.Register(now, req, hash)
}

// Conflict refuses an instance whose worker id or route belongs to one that answers.
func Conflict(req wire.RegisterRequest) *wire.Error {
	return wire.Errorf(wire.CodeConflict, "another instance holds worker id %s or this route, and answers; stop it first, or give this worker an id and a state directory of its own", req.Worker)
}

// admit writes the entry; every other holder of id and route is known to be over.
func (t *Table) admit(now time.Time, req wire.RegisterRequest, hash string) (Registration, error) {
	e, known := t.workers[req.Worker]
	if known && e.instance == req.Instance && e.gone {
		return Registration{}, wire.Errorf(wire.CodeConflict, "this instance has said goodbye; start a new one")
	}
	if !known {
		if !t.makeRoom(now, false) {
			return Registration{}, wire.Errorf(wire.CodeQuotaExceeded, "the coordinator knows %d workers, its limit; stop some, or raise it", t.cfg.MaxWorkers)
		}
		e = &entry{instance: req.Instance}
		t.workers[req.Worker] = e
	}
	var out Registration
	switch {
	case e.refused != "":
		*e = entry{instance: req.Instance, cordoned: e.cordoned, retired: e.retired}
	case e.instance != req.Instance:
		out.Replaced = t.replace(e, req)
	}
	if owner, ok := t.routes[req.Route]; ok && owner != req.Worker {
		if o := t.workers[owner]; !o.gone {
			o.gone, o.beat.reason = true, "its route was taken over by another worker"
		}
	}
	if e.desc != nil && e.desc.Route != req.Route {
		t.dropRoute(req.Worker)
	}
	if e.desc == nil && e.beat.seq == 0 {
		e.slots.report(len(req.Inventory.Leases))
	}
	req.Inventory = wire.Inventory{}
	e.desc, e.hash = &req, hash
	e.contact(now)
	t.routes[req.Route] = req.Worker
	return out, nil
}

// replace gives e to a new instance; its cordon and its past stay.
func (t *Table) replace(e *entry, req wire.RegisterRequest) *Replaced {
	old := &Replaced{Target: Target{Worker: req.Worker, Instance: e.instance}}
	if e.desc != nil {
		old.SameBoot = e.desc.HostBootID != "" && e.desc.HostBootID == req.HostBootID
		t.dropRoute(req.Worker)
	}
	past := slices.DeleteFunc(e.retired, func(r retired) bool { return r.instance == req.Instance })
	*e = entry{instance: req.Instance, cordoned: e.cordoned, retired: past, watch: watch{contact: e.watch.contact}}
	e.retire(retired{instance: old.Instance, contact: e.watch.contact, sameBoot: old.SameBoot})
	return old
}

func (e *entry) retire(r retired) {
	if len(e.retired) == maxRetired {
		e.retired = slices.Delete(e.retired, 0, 1)
	}
	e.retired = append(e.retired, r)
}

func (e *entry) hasRetired(instance string) bool {
	return slices.ContainsFunc(e.retired, func(r retired) bool { return r.instance == instance })
}

// dropRoute frees the route of worker, if the index still gives it to it.
func (t *Table) dropRoute(worker string) {
	if d := t.workers[worker].desc; d != nil && t.routes[d.Route] == worker {
		delete(t.routes, d.Route)
	}
}

// checkVersion refuses a version that is not spoken here and lists the worker
// as refused, unless that would displace one that is known.
func (t *Table) checkVersion(now time.Time, req wire.RegisterRequest) error {
	if err := wire.CheckToken("worker", req.Worker); err != nil {
		return err
	}
	if err := wire.CheckToken("instance", req.Instance); err != nil {
		return err
	}
	if v := req.ProtocolVersion; v >= t.cfg.MinVersion && v <= t.cfg.MaxVersion {
		return nil
	}
	err := wire.Errorf(wire.CodeUnsupportedVersion, "the worker speaks protocol version %d, this coordinator %d to %d; upgrade the older of the two",
		req.ProtocolVersion, t.cfg.MinVersion, t.cfg.MaxVersion)
	e, known := t.workers[req.Worker]
	if known && e.refused == "" && t.state(now, e) != StateDead && !e.gone {
		return err
	}
	if !known && !t.makeRoom(now, true) {
		return err
	}
	if !known {
		e = &entry{instance: req.Instance}
		t.workers[req.Worker] = e
	} else if e.refused == "" {
		t.replace(e, req)
	}
	e.instance, e.refused, e.watch = req.Instance, err.Error(), watch{contact: now}
	return err
}

// makeRoom forgets the refused, gone or dead worker that has been silent
// longest if the table is full. It reports whether there is room. onlyRefused
// keeps those that ever were registered.
func (t *Table) makeRoom(now time.Time, onlyRefused bool) bool {
	if len(t.workers) < t.cfg.MaxWorkers {
		return true
	}
	oldest := ""
	for name, e := range t.workers {
		over := e.refused != "" || !onlyRefused && (e.gone || t.state(now, e) == StateDead)
		if over && (oldest == "" || e.watch.contact.Before(t.workers[oldest].watch.contact)) {
			oldest = name
		}
	}
	if oldest == "" {
		return false
	}
	t.dropRoute(oldest)
	delete(t.workers, oldest)
	return true
}
