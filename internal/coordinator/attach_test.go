package coordinator

import (
	"bytes"
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

const (
	attachSubject  = "weft.v1.api.default.attach"
	observeSubject = "weft.v1.api.default.observe"
)

func attachOf(o wire.OpenRequest) wire.AttachRequest {
	return wire.AttachRequest{Lease: o.Lease, Epoch: o.Epoch, Channel: o.Channel, Credit: o.Credit}
}

// attaches makes the double obey attach orders as a worker does whose channel
// has attach number held.
func (d *double) attaches(held uint32) {
	var mu sync.Mutex
	d.on(subjects.WKAttach, func(o wire.Order) any {
		var a wire.AttachOrder
		_ = json.Unmarshal(o.Order, &a)
		mu.Lock()
		defer mu.Unlock()
		if a.Attach <= held {
			return passed(held)
		}
		held = a.Attach
		return attached(a, d)
	})
}

func passed(held uint32) *wire.Error {
	return wire.Errorf(wire.CodeConflict, "not newer").With("attach", strconv.FormatUint(uint64(held), 10))
}

func attached(a wire.AttachOrder, d *double) wire.AttachedReply {
	return wire.AttachedReply{
		Channel: a.Channel, Instance: d.req.Instance, Attach: a.Attach,
		Up:   wire.UpPosition{NextSeq: 3, NextOffset: 11, Written: 10, Limit: 99, FrameLimit: 58},
		Down: wire.DownPosition{AckedSeq: 1, LastSeq: 4, Gone: [][2]uint64{{3, 3}}, Stdout: wire.StreamPosition{Acked: 5, Sent: 9}},
	}
}

// opened opens a channel and waits until it is on record as open.
func (r *rig) opened(d *double, l wire.Lease) (req wire.OpenRequest, secret []byte) {
	r.t.Helper()
	req = openOf(l, wire.ModeDuplex, "cat")
	r.open(req)
	var order wire.OpenOrder
	d.last(subjects.WKOpen, &order)
	r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "open" })
	return req, order.Secret
}

func (r *rig) attachOnRecord(req wire.OpenRequest) uint32 {
	return r.channelUntil(req.Lease, req.Channel, func(wire.Channel) bool { return true }).Attach
}

func TestC030_AttachTakesTheNextNumber(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	onRecord := make(chan uint32, 1)
	d.on(subjects.WKAttach, func(o wire.Order) any {
		var a wire.AttachOrder
		_ = json.Unmarshal(o.Order, &a)
		// The number is written before the worker hears of it.
		msg, err := d.nc.Request(subjects.API("default", subjects.APIChannel), wire.Encode(wire.ChannelRequest{Lease: l.ID, Channel: req.Channel}), 5*time.Second)
		var c wire.ChannelReply
		if err == nil && json.Unmarshal(msg.Data, &c) == nil {
			onRecord <- c.Channel.Attach
		}
		return attached(a, d)
	})
	ask := attachOf(req)
	ask.From = &wire.Offsets{Stdout: 7}
	var reply wire.AttachReply
	r.must(attachSubject, ask, &reply)
	if n := <-onRecord; n != 2 {
		t.Errorf("the record said %d when the worker was asked", n)
	}
	var order wire.AttachOrder
	d.last(subjects.WKAttach, &order)
	if order.Attach != 2 || order.Channel != req.Channel || order.Credit != ask.Credit || *order.From != *ask.From ||
		order.Instance != d.req.Instance || order.Epoch != l.Epoch || order.Tenant != "default" || order.Lease != l.ID {
		t.Errorf("order: %+v", order)
	}
	up, down, a := wire.KeyUp(secret, 2), wire.KeyDown(secret), attached(order, d)
	want := wire.AttachReply{
		Channel: req.Channel, Attach: 2, Route: l.Route, Instance: d.req.Instance, Epoch: l.Epoch.N, KeyUp: up[:], KeyDown: down[:], Up: a.Up, Down: a.Down,
	}
	if diff := cmp.Diff(want, reply); diff != "" {
		t.Error(diff)
	}
	// A repeated open still gets the first attach, which the worker fences.
	if again := r.open(req); again.Attach != 1 {
		t.Errorf("the open's attach is %d", again.Attach)
	}
	r.must(attachSubject, ask, &reply)
	if reply.Attach != 3 || r.attachOnRecord(req) != 3 {
		t.Errorf("the next attach is %d", reply.Attach)
	}
}

func TestAttachPassesTheGate(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	d.attaches(1)
	l := r.acquire("one")
	req, _ := r.opened(d, l)
	exec := openOf(l, wire.ModeExecute, "true")
	r.must(subjects.API("default", subjects.APIExecute), exec, nil)
	change := func(f func(*wire.AttachRequest)) wire.AttachRequest {
		a := attachOf(req)
		f(&a)
		return a
	}
	for name, c := range map[string]struct {
		subject string
		req     any
		want    wire.Code
	}{
		"no credit":       {attachSubject, change(func(a *wire.AttachRequest) { a.Credit.Stderr = 0 }), wire.CodeInvalidArgument},
		"unknown field":   {attachSubject, []byte(`{"lease":"` + l.ID + `","more":1}`), wire.CodeInvalidArgument},
		"no channel id":   {attachSubject, change(func(a *wire.AttachRequest) { a.Channel = uuid.Nil }), wire.CodeInvalidArgument},
		"unknown channel": {attachSubject, change(func(a *wire.AttachRequest) { a.Channel = uuid.New() }), wire.CodeNotFound},
		"unknown lease":   {attachSubject, change(func(a *wire.AttachRequest) { a.Lease = uuid.NewString() }), wire.CodeNotFound},
		"other tenant":    {"weft.v1.api.other.attach", attachOf(req), wire.CodeNotFound},
		"old epoch":       {attachSubject, change(func(a *wire.AttachRequest) { a.Epoch.N++ }), wire.CodeStaleEpoch},
		"execute":         {attachSubject, attachOf(exec), wire.CodeInvalidArgument},
		"observe execute": {observeSubject, attachOf(exec), wire.CodeInvalidArgument},
		"observe other":   {"weft.v1.api.other.observe", attachOf(req), wire.CodeNotFound},
		"observe epoch":   {observeSubject, change(func(a *wire.AttachRequest) { a.Epoch.N++ }), wire.CodeStaleEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			if err := r.ask(c.subject, c.req, nil); wire.CodeOf(err) != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	// Capabilities are resolved anew: what the instance cannot do any more is refused.
	d.kill()
	without := r.double("w1", func(q *wire.RegisterRequest) { q.Providers[0].Capabilities = []wire.Capability{wire.CapExecute} })
	r.refused(wire.CodeCapabilityDenied, attachSubject, attachOf(req))
	r.refused(wire.CodeCapabilityDenied, observeSubject, attachOf(req))
	if n := d.count(subjects.WKAttach) + without.count(subjects.WKAttach); n != 0 || r.attachOnRecord(req) != 1 {
		t.Errorf("%d orders, attach %d", n, r.attachOnRecord(req))
	}
}

// Clients that resumed on the channel itself have used numbers that no record
// has; two attaches at once have one winner.
func TestAttachNumbersThatWereGivenElsewhere(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	d.attaches(7)
	var reply wire.AttachReply
	r.must(attachSubject, attachOf(req), &reply)
	if up := wire.KeyUp(secret, 8); reply.Attach != 8 || !bytes.Equal(reply.KeyUp, up[:]) || r.attachOnRecord(req) != 8 {
		t.Fatalf("attach %d, on record %d", reply.Attach, r.attachOnRecord(req))
	}
	if n := d.count(subjects.WKAttach); n != 2 {
		t.Fatalf("%d orders", n)
	}
	// Always one behind: given up after a few.
	d.on(subjects.WKAttach, func(o wire.Order) any {
		var a wire.AttachOrder
		_ = json.Unmarshal(o.Order, &a)
		return passed(a.Attach)
	})
	r.refused(wire.CodeConflict, attachSubject, attachOf(req))
	if n := d.count(subjects.WKAttach); n != 2+attachTries {
		t.Fatalf("%d orders", n)
	}
	// A CONFLICT that names no number, or an older one, is the worker's last word.
	for _, e := range []*wire.Error{wire.Errorf(wire.CodeConflict, "no"), passed(3), wire.Errorf(wire.CodeConflict, "no").With("attach", "x")} {
		d.on(subjects.WKAttach, func(wire.Order) any { return e })
		before := d.count(subjects.WKAttach)
		r.refused(wire.CodeConflict, attachSubject, attachOf(req))
		if n := d.count(subjects.WKAttach) - before; n != 1 {
			t.Fatalf("%d orders after %v", n, e.Details)
		}
	}
}

func TestI001_TwoAttachesAtOnce(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, _ := r.opened(d, l)
	first, release := make(chan struct{}), make(chan struct{})
	d.on(subjects.WKAttach, func(o wire.Order) any {
		var a wire.AttachOrder
		_ = json.Unmarshal(o.Order, &a)
		if a.Attach == 2 { // overtaken on its way
			close(first)
			<-release
			return passed(3)
		}
		return attached(a, d)
	})
	loser := make(chan error, 1)
	go func() { loser <- r.ask(attachSubject, attachOf(req), nil) }()
	<-first
	var reply wire.AttachReply
	r.must(attachSubject, attachOf(req), &reply)
	close(release)
	if err := <-loser; wire.CodeOf(err) != wire.CodeConflict || reply.Attach != 3 {
		t.Fatalf("winner %d, loser %v", reply.Attach, err)
	}
	if n := d.count(subjects.WKAttach); n != 2 {
		t.Fatalf("%d orders: the loser took the channel back", n)
	}
	// Many at once: every number goes to one of them.
	d.attaches(3)
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[uint32]bool{}
	for range 16 {
		wg.Go(func() {
			var reply wire.AttachReply
			err := r.ask(attachSubject, attachOf(req), &reply)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && wire.CodeOf(err) != wire.CodeConflict || err == nil && seen[reply.Attach] {
				t.Errorf("attach %d, %v", reply.Attach, err)
			}
			seen[reply.Attach] = true
		})
	}
	wg.Wait()
}

func TestAttachAfterTheEnd(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	d.attaches(1)
	r.ended(d, l, req.Channel, wire.ExitedWith(3))
	// Its worker may still have bytes, and gives them to who holds the channel.
	var reply wire.AttachReply
	r.must(attachSubject, attachOf(req), &reply)
	if reply.Attach != 2 || reply.Outcome != nil || len(reply.KeyUp) != wire.KeySize {
		t.Fatalf("while the worker has it: %+v", reply)
	}
	reading := func(what string, down wire.DownPosition) {
		t.Helper()
		var reply wire.AttachReply
		r.must(attachSubject, attachOf(req), &reply)
		key := wire.KeyDown(secret)
		want := wire.AttachReply{Channel: req.Channel, Route: l.Route, Epoch: l.Epoch.N, KeyDown: key[:], Outcome: new(wire.ExitedWith(3)), Down: down}
		if diff := cmp.Diff(want, reply); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		r.must(observeSubject, attachOf(req), &reply)
	}
	d.on(subjects.WKAttach, func(wire.Order) any {
		o := wire.ExitedWith(3)
		return wire.AttachedReply{Channel: req.Channel, Instance: d.req.Instance, Outcome: &o, Down: wire.DownPosition{LastSeq: 9}}
	})
	reading("ended at the worker", wire.DownPosition{LastSeq: 9})
	d.on(subjects.WKAttach, func(wire.Order) any { return wire.Errorf(wire.CodeNotFound, "no") })
	reading("unknown to the worker", wire.DownPosition{})
	// Nor is the lease needed to read what is left.
	r.must(subjects.API("default", subjects.APIRelease), wire.LeaseRequest{Lease: l.ID}, nil)
	reading("lease released", wire.DownPosition{})
	d.kill()
	reading("worker gone", wire.DownPosition{})
	r.refused(wire.CodeNotFound, "weft.v1.api.other.attach", attachOf(req))
}

func TestAttachWhenTheWorkerDoesNot(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.Open = time.Second })
	d := r.double("w1")
	l := r.acquire("one")
	req, _ := r.opened(d, l)
	for name, c := range map[string]struct {
		answer any
		want   wire.Code
	}{
		"not there":      {wire.Errorf(wire.CodeNotFound, "no"), wire.CodeUnavailable},
		"over":           {wire.Errorf(wire.CodeChannelEnded, "no"), wire.CodeUnavailable},
		"from too far":   {wire.Errorf(wire.CodeInvalidArgument, "from is beyond what the command has written"), wire.CodeInvalidArgument},
		"other instance": {wire.Errorf(wire.CodeWorkerNotRunning, "no"), wire.CodeWorkerNotRunning},
		"older worker":   {wire.Errorf(wire.CodeUnsupportedVersion, "no"), wire.CodeUnsupportedVersion},
		"inside":         {wire.Errorf(wire.CodeInternal, "secret"), wire.CodeOpenFailed},
		"junk":           {[]byte("junk"), wire.CodeOpenFailed},
		"other channel":  {wire.AttachedReply{Channel: uuid.New(), Instance: d.req.Instance, Attach: 2}, wire.CodeOpenFailed},
		"other number":   {wire.AttachedReply{Channel: req.Channel, Instance: d.req.Instance, Attach: 1}, wire.CodeOpenFailed},
		"a clone":        {wire.AttachedReply{Channel: req.Channel, Instance: uuid.NewString(), Attach: 2}, wire.CodeWorkerNotRunning},
		"silence":        {nil, wire.CodeDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			d.on(subjects.WKAttach, func(wire.Order) any { return c.answer })
			if err := r.ask(attachSubject, attachOf(req), nil); wire.CodeOf(err) != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	d.kill()
	r.refused(wire.CodeWorkerNotRunning, attachSubject, attachOf(req))
}

// An attach may come before the open is on record.
func TestAttachRightAfterTheOpen(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	d.attaches(1)
	l := r.acquire("one")
	req := openOf(l, wire.ModeDuplex, "cat")
	r.open(req)
	var reply wire.AttachReply
	r.must(attachSubject, attachOf(req), &reply)
	if c := r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "open" }); reply.Attach != 2 || c.Attach != 2 {
		t.Fatalf("attach %d, on record %+v", reply.Attach, c)
	}
}

func TestC036_ObserveGivesNothingToHold(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req, secret := r.opened(d, l)
	ask := attachOf(req)
	ask.Credit = wire.DownCredit{}
	var reply wire.AttachReply
	r.must(observeSubject, ask, &reply)
	key := wire.KeyDown(secret)
	if diff := cmp.Diff(wire.AttachReply{Channel: req.Channel, Route: l.Route, Epoch: l.Epoch.N, KeyDown: key[:]}, reply); diff != "" {
		t.Error(diff)
	}
	if n := d.count(subjects.WKAttach); n != 0 || r.attachOnRecord(req) != 1 {
		t.Errorf("%d orders, attach %d", n, r.attachOnRecord(req))
	}
}

func TestListsAreNeverNull(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	for subject, key := range map[string]string{
		subjects.API("default", subjects.APIList): "leases", subjects.API("default", subjects.APIChannels): "channels",
		subjects.Operator(subjects.OpWorkers): "workers", subjects.Operator(subjects.OpLeases): "leases", subjects.Operator(subjects.OpChannels): "channels",
	} {
		var reply map[string]json.RawMessage
		r.must(subject, wire.ListRequest{}, &reply)
		if string(reply[key]) != "[]" {
			t.Errorf("%s: %s is %s", subject, key, reply[key])
		}
	}
	d := r.double("w1")
	d.attaches(1)
	l := r.acquire("one")
	req, _ := r.opened(d, l)
	r.must(attachSubject, attachOf(req), nil)
	for _, subject := range []string{subjects.API("default", subjects.APIChannels), subjects.Operator(subjects.OpChannels)} {
		var list wire.ChannelList
		r.must(subject, wire.ListRequest{}, &list)
		if len(list.Channels) != 1 || list.Channels[0].Attach != 2 {
			t.Errorf("%s: %+v", subject, list.Channels)
		}
	}
}
