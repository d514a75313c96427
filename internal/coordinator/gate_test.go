package coordinator

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

var openSubject = subjects.API("default", subjects.APIOpen)

func TestG001_Arguments(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	for _, argv := range [][]string{{}, {""}, {"a", "a\x00b"}} {
		e := r.refused(wire.CodeInvalidArgument, openSubject, openOf(l, wire.ModeDuplex, argv...))
		if !strings.Contains(e.Message, "argv") {
			t.Errorf("%q does not name the item", e.Message)
		}
	}
	huge := openOf(l, wire.ModeDuplex, "a", strings.Repeat("x", 200<<10), strings.Repeat("x", 200<<10))
	r.refused(wire.CodeInvalidArgument, openSubject, huge)
	huge.Body = append(huge.Body, []byte(strings.Repeat(" ", 120<<10))...)
	r.refused(wire.CodePayloadTooLarge, openSubject, huge)
	noCredit := openOf(l, wire.ModeDuplex, "a")
	noCredit.Credit.FrameLimit = 0
	r.refused(wire.CodeInvalidArgument, openSubject, noCredit)
	other := openOf(l, wire.ModeExecute, "a")
	r.refused(wire.CodeInvalidArgument, openSubject, other)
	v1 := openOf(l, wire.ModeDuplex, "a")
	v1.Channel = uuid.Must(uuid.NewUUID())
	r.refused(wire.CodeInvalidArgument, openSubject, v1)
	if n := d.count(subjects.WKOpen); n != 0 {
		t.Fatalf("the worker received %d opens", n)
	}
}

// gateCase is a worker and what its bind says, and what an open is told.
type gateCase struct {
	id      string
	worker  func(*wire.RegisterRequest)
	bind    func(*wire.BindReply)
	code    wire.Code
	text    []string // that the refusal contains
	absent  []string // that it does not
	execute wire.Code
}

func TestGate_LeaseAndWorker(t *testing.T) {
	cases := []gateCase{
		{id: "G004_NoSuchDriver", bind: func(b *wire.BindReply) { b.Driver = "nosuch" }, code: wire.CodeDriverNotRegistered, execute: wire.CodeDriverNotRegistered},
		{id: "G004_NoDuplexDriver", worker: func(q *wire.RegisterRequest) { q.Providers[0].Duplex = false }, code: wire.CodeDriverNoDuplex, text: []string{"one-shot"}},
		{id: "G005_NotDeclared", worker: func(q *wire.RegisterRequest) { q.Providers[0].Capabilities = []wire.Capability{wire.CapExecute} }, code: wire.CodeCapabilityDenied},
		{id: "G005_NotVerified", worker: func(q *wire.RegisterRequest) { q.Verbs = []string{"execute"} }, code: wire.CodeCapabilityDenied},
		{id: "G006_Narrowed", bind: func(b *wire.BindReply) { b.Capabilities = []wire.Capability{wire.CapExecute} }, code: wire.CodeCapabilityDenied},
		{id: "G007_NoPlugin", bind: func(b *wire.BindReply) { delete(b.Metadata, wire.MetadataSandboxProviderPlugin) },
			code: wire.CodeDuplexUnsupported, text: []string{"does not support duplex channels", "weft exec"}},
		{id: "G008_NoPluginID", bind: func(b *wire.BindReply) { b.Metadata[wire.MetadataPluginID] = "" },
			code: wire.CodeMetadataIncomplete, text: []string{"metadata.pluginId"}, absent: []string{"metadata.provider", "providerLeaseId"}},
		{id: "G008_NoProvider", bind: func(b *wire.BindReply) { b.Metadata[wire.MetadataProvider] = "" },
			code: wire.CodeMetadataIncomplete, text: []string{"metadata.provider"}, absent: []string{"metadata.pluginId", "providerLeaseId"}},
		{id: "G008_NoProviderLease", bind: func(b *wire.BindReply) { b.ProviderLeaseID = "" },
			code: wire.CodeMetadataIncomplete, text: []string{"providerLeaseId"}, absent: []string{"metadata.pluginId", "metadata.provider"}},
		{id: "G008_All", bind: func(b *wire.BindReply) {
			b.ProviderLeaseID, b.Metadata[wire.MetadataProvider], b.Metadata[wire.MetadataPluginID] = "", "", ""
		}, code: wire.CodeMetadataIncomplete, text: []string{"metadata.pluginId", "metadata.provider", "providerLeaseId"}},
	}
	r := newRig(t)
	r.coordinator()
	for _, c := range cases {
		t.Run(c.id, func(t *testing.T) { c.run(t, r) })
	}
}

func (c gateCase) run(t *testing.T, shared *rig) {
	r := &rig{t: t, srv: shared.srv, nc: shared.nc}
	name := "w" + strings.ToLower(strings.ReplaceAll(c.id, "_", "-"))
	d := r.double(name, func(q *wire.RegisterRequest) {
		q.PluginID = name
		if c.worker != nil {
			c.worker(q)
		}
	})
	d.on(subjects.WKBind, func(o wire.Order) any {
		b := bound(o, d)
		if c.bind != nil {
			c.bind(&b)
		}
		return b
	})
	var got wire.LeaseReply
	r.must(subjects.API("default", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: c.id, Plugin: name}, &got)
	e := r.refused(c.code, openSubject, openOf(got.Lease, wire.ModeDuplex, "true"))
	for _, s := range c.text {
		if !strings.Contains(e.Message, s) {
			t.Errorf("%q does not contain %q", e.Message, s)
		}
	}
	for _, s := range c.absent {
		if strings.Contains(e.Message, s) {
			t.Errorf("%q contains %q", e.Message, s)
		}
	}
	if d.count(subjects.WKOpen) != 0 {
		t.Error("the worker received an open")
	}
	req := openOf(got.Lease, wire.ModeExecute, "true")
	if c.execute != "" {
		r.refused(c.execute, subjects.API("default", subjects.APIExecute), req)
		return
	}
	r.must(subjects.API("default", subjects.APIExecute), req, nil)
	var order wire.OpenOrder
	if d.last(subjects.WKOpen, &order); order.Mode != wire.ModeExecute || order.Lease != got.Lease.ID || order.ProviderLeaseID != "" {
		t.Errorf("order: %+v", order)
	}
}

func TestG010_ChannelsPerLease(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerLease = 3 })
	d := r.double("w1")
	l := r.acquire("one")
	var wg sync.WaitGroup
	reqs := make([]wire.OpenRequest, 3)
	for i := range reqs {
		reqs[i] = openOf(l, wire.ModeDuplex, "cat")
		wg.Go(func() { r.open(reqs[i]) })
	}
	wg.Wait()
	e := r.refused(wire.CodeRouteBusy, openSubject, openOf(l, wire.ModeDuplex, "cat"))
	if !strings.Contains(e.Message, "3") || !e.Retryable {
		t.Fatalf("refusal: %+v", e)
	}
	// A repeat of an open channel is no fourth.
	r.open(reqs[0])
	r.ended(d, l, reqs[0].Channel, wire.ExitedWith(0))
	r.open(openOf(l, wire.ModeDuplex, "cat"))
	if n := d.count(subjects.WKOpen); n != 4 {
		t.Fatalf("%d opens", n)
	}
}

func TestG011_ChannelsPerTenant(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerTenant = 3 })
	r.double("w1")
	a, b := r.acquire("a"), r.acquire("b")
	r.open(openOf(a, wire.ModeDuplex, "cat"))
	r.open(openOf(a, wire.ModeDuplex, "cat"))
	r.open(openOf(b, wire.ModeDuplex, "cat"))
	r.refused(wire.CodeQuotaExceeded, openSubject, openOf(b, wire.ModeDuplex, "cat"))
	var other wire.LeaseReply
	r.must(subjects.API("other", subjects.APIAcquire), wire.AcquireRequest{IdempotencyKey: "a"}, &other)
	r.must(subjects.API("other", subjects.APIOpen), openOf(other.Lease, wire.ModeDuplex, "cat"), nil)
}

func TestG014_WorkerGone(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	d.beat()
	d.kill()
	req := openOf(l, wire.ModeDuplex, "cat")
	began := time.Now()
	r.refused(wire.CodeWorkerNotRunning, openSubject, req)
	took := time.Since(began)
	t.Logf("refused after %v (bound 200ms)", took)
	if took > 2*time.Second {
		t.Fatalf("refused after %v", took)
	}
	c := r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "ended" })
	if c.Outcome.Kind != wire.StartFailed || c.EndedBy != "coordinator" {
		t.Fatalf("record: %+v", c)
	}
	// The repeat says the same.
	r.refused(wire.CodeWorkerNotRunning, openSubject, req)
}

func TestG016_SandboxNotCachedAndDraining(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerLease = 1 })
	d := r.double("w1")
	l := r.acquire("one")
	for _, code := range []wire.Code{wire.CodeSandboxNotCached, wire.CodeWorkerDraining, wire.CodeWorkerNotRunning, wire.CodeStaleEpoch} {
		d.on(subjects.WKOpen, func(wire.Order) any { return wire.Errorf(code, "no") })
		r.refused(code, openSubject, openOf(l, wire.ModeDuplex, "cat"))
	}
	d.on(subjects.WKOpen, func(wire.Order) any { return wire.Errorf("SECRET_DRIVER_THING", "a path of the host") })
	if e := r.refused(wire.CodeOpenFailed, openSubject, openOf(l, wire.ModeDuplex, "cat")); strings.Contains(e.Message, "host") {
		t.Fatalf("the worker's text crossed: %v", e)
	}
	d.on(subjects.WKOpen, func(o wire.Order) any { return opened(o, d) })
	r.open(openOf(l, wire.ModeDuplex, "cat")) // the one slot is free
}

func TestG017_BadOpenReplies(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerLease = 2 })
	d := r.double("w1")
	l := r.acquire("one")
	kept := openOf(l, wire.ModeDuplex, "cat")
	r.open(kept)
	for name, answer := range map[string]func(wire.Order) any{
		"another channel": func(o wire.Order) any { a := opened(o, d); a.Channel = uuid.New(); return a },
		"no instance":     func(o wire.Order) any { a := opened(o, d); a.Instance = ""; return a },
		"cut off":         func(o wire.Order) any { b := wire.Encode(opened(o, d)); return b[:len(b)/2] },
		"empty":           func(wire.Order) any { return []byte{} },
	} {
		t.Run(name, func(t *testing.T) {
			before := d.count(subjects.WKClose)
			d.on(subjects.WKOpen, answer)
			req := openOf(l, wire.ModeDuplex, "cat")
			r.refused(wire.CodeOpenFailed, openSubject, req)
			eventually(t, func() bool { return d.count(subjects.WKClose) == before+1 })
			var c wire.CloseOrder
			if d.last(subjects.WKClose, &c); c.Channel != req.Channel {
				t.Fatalf("closed %v", c.Channel)
			}
		})
	}
	d.on(subjects.WKOpen, func(o wire.Order) any { a := opened(o, d); a.Instance = uuid.NewString(); return a })
	r.refused(wire.CodeWorkerNotRunning, openSubject, openOf(l, wire.ModeDuplex, "cat"))
	if c := r.channelUntil(l.ID, kept.Channel, func(wire.Channel) bool { return true }); c.State == "ended" {
		t.Fatal("the worker's other channel ended")
	}
	d.on(subjects.WKOpen, func(o wire.Order) any { return opened(o, d) })
	r.open(openOf(l, wire.ModeDuplex, "cat"))
}

func TestG018_OpenTimesOut(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.Open = 300 * time.Millisecond })
	d := r.double("w1")
	l := r.acquire("one")
	late := make(chan struct{})
	d.on(subjects.WKOpen, func(o wire.Order) any {
		<-late
		return opened(o, d)
	})
	req := openOf(l, wire.ModeDuplex, "cat")
	began := time.Now()
	r.refused(wire.CodeDeadlineExceeded, openSubject, req)
	took := time.Since(began)
	t.Logf("refused after %v (limit 300ms)", took)
	if took < 250*time.Millisecond || took > 2*time.Second {
		t.Fatalf("refused after %v", took)
	}
	// The worker is told to end it, before or after its late answer.
	eventually(t, func() bool { return d.count(subjects.WKClose) == 1 })
	close(late)
	c := r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "ended" })
	if c.Outcome.Kind != wire.Unknown {
		t.Fatalf("record: %+v", c)
	}
	if o := r.ended(d, l, req.Channel, wire.ExitedWith(0)); o.Kind != wire.Unknown {
		t.Fatalf("a late end became %s", o)
	}
}

func TestC026_RepeatedOpen(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	r.coordinator()
	d := r.double("w1")
	r.known("w1")
	l := r.acquire("one")
	d.on(subjects.WKOpen, func(o wire.Order) any { return opened(o, d) })
	for range 10 {
		req := openOf(l, wire.ModeDuplex, "cat")
		var wg sync.WaitGroup
		got := make([]wire.OpenReply, 4)
		for i := range got {
			wg.Go(func() { got[i] = r.open(req) })
		}
		wg.Wait()
		for _, g := range got {
			if string(wire.Encode(g)) != string(wire.Encode(got[0])) {
				t.Fatalf("two answers: %+v %+v", g, got[0])
			}
		}
		another := req
		another.Body = body(wire.ModeDuplex, "dog")
		r.refused(wire.CodeConflict, openSubject, another)
		r.ended(d, l, req.Channel, wire.ExitedWith(7))
		if again := r.open(req); again.Outcome == nil || again.Outcome.String() != "exited(7)" {
			t.Fatalf("after its end: %+v", again)
		}
	}
	if n := d.count(subjects.WKOpen); n != 10 {
		t.Fatalf("%d starts of 10 channels", n)
	}
}

func TestStartFailed(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerLease = 1 })
	d := r.double("w1")
	l := r.acquire("one")
	why := wire.StartFailedFor(wire.StartNotFound)
	d.on(subjects.WKOpen, func(o wire.Order) any { a := opened(o, d); a.Outcome = &why; return a })
	req := openOf(l, wire.ModeDuplex, "nosuch")
	if reply := r.open(req); reply.Outcome == nil || *reply.Outcome != why {
		t.Fatalf("reply: %+v", reply)
	}
	r.channelUntil(l.ID, req.Channel, func(c wire.Channel) bool { return c.State == "ended" && c.Outcome.Kind == wire.StartFailed })
	if reply := r.open(req); reply.Outcome == nil || *reply.Outcome != why {
		t.Fatalf("repeat: %+v", reply)
	}
	r.open(openOf(l, wire.ModeDuplex, "nosuch")) // the slot is free
}

func TestKill(t *testing.T) {
	r := newRig(t)
	r.coordinator()
	d := r.double("w1")
	l := r.acquire("one")
	req := openOf(l, wire.ModeDuplex, "cat")
	r.open(req)
	r.must(subjects.API("default", subjects.APIKill), wire.ChannelRequest{Lease: l.ID, Channel: req.Channel}, nil)
	var c wire.CloseOrder
	if d.last(subjects.WKClose, &c); c.Channel != req.Channel || c.Outcome != wire.EndedByRequest {
		t.Fatalf("order: %+v", c)
	}
}
