package coordinator

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestQuotaOfTheLog(t *testing.T) {
	r := newRig(t)
	r.coordinator(func(c *Config) { c.Limits.LogBytes = 2 << 20 })
	d := r.double("w1")
	l := r.acquire("one")
	var first wire.OpenRequest
	for i := range 3 { // 80 % of 2 MiB are three times 512 KiB
		req, _ := r.opened(d, l)
		if i == 0 {
			first = req
		}
	}
	next := openOf(l, wire.ModeDuplex, "cat")
	e := r.refused(wire.CodeQuotaExceeded, openSubject, next)
	if !e.Retryable || !strings.Contains(e.Message, "log") {
		t.Errorf("refusal: %+v", e)
	}
	r.open(first) // a repeat takes no place
	r.ended(d, l, first.Channel, wire.ExitedWith(0))
	r.open(next)
}

// keep is a channel on record whose log has n messages of 1 KiB in a direction.
func keep(t *testing.T, r *rig, p *parts, n int, end func(channel.Record) channel.Record) channel.Record {
	t.Helper()
	rec := channel.New(time.Now(), "default", uuid.NewString(), uuid.New(), wire.ModeDuplex, nil, channel.Home{Worker: "w1", Instance: "i1", Route: "r1"}, wire.NewSecret())
	if end != nil {
		rec = end(rec)
	}
	if _, err := p.store.channels.create(t.Context(), keyOf(rec), rec); err != nil {
		t.Fatal(err)
	}
	for range n {
		r.store(logChannel(rec).Data(subjects.Down), make([]byte, 1<<10))
	}
	return rec
}

func endedBy(by channel.By) func(channel.Record) channel.Record {
	return func(r channel.Record) channel.Record {
		r, _ = r.WithEnd(time.Now(), by, wire.ExitedWith(0), nil)
		return r
	}
}

// kept is how many messages of a channel are in the log.
func kept(t *testing.T, p *parts, rec channel.Record) int {
	t.Helper()
	in, err := p.logs.subjects(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return int(in[logChannel(rec).Data(subjects.Down)])
}

func TestFullLogIsTrimmed(t *testing.T) {
	r := newRig(t)
	var out bytes.Buffer
	p := r.parts(func(c *Config) { c.Limits.LogBytes = 1 << 20; c.Log = zerolog.New(&out) })
	look := func() {
		t.Helper()
		if err := p.keeper.look(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
	}
	// 17 small ones, so that the first batch is not all of them.
	var small []channel.Record
	for range trimBatch + 1 {
		small = append(small, keep(t, r, p, 1, endedBy(channel.ByWorker)))
	}
	big := keep(t, r, p, 100, endedBy(channel.ByWorker))
	lost := keep(t, r, p, 120, endedBy(channel.ByCoordinator))
	running := keep(t, r, p, 128, nil)
	look()
	if n := kept(t, p, big); n != 100 {
		t.Fatalf("below the mark %d of 100 are left", n)
	}
	more := keep(t, r, p, 128, nil)
	stranger := keep(t, r, p, 100, nil) // all in all about two thirds
	look()
	left := 0
	for _, s := range small {
		left += kept(t, p, s)
	}
	if kept(t, p, big) != 0 || left != 2 || kept(t, p, lost) != 120 {
		t.Errorf("above the mark: big %d, small %d, of the lost %d", kept(t, p, big), left, kept(t, p, lost))
	}
	if strings.Contains(out.String(), "log_pressure") {
		t.Error("alarm although there is room again")
	}
	// What runs is never trimmed; the alarm is raised once, and taken back.
	for range 3 {
		keep(t, r, p, 128, nil)
	}
	look()
	look()
	if kept(t, p, lost) != 0 || kept(t, p, running) != 128 || kept(t, p, more) != 128 || kept(t, p, stranger) != 100 {
		t.Errorf("lost %d, running %d %d %d", kept(t, p, lost), kept(t, p, running), kept(t, p, more), kept(t, p, stranger))
	}
	if n := strings.Count(out.String(), `"alarm":"log_pressure","raised":true`); n != 1 {
		t.Errorf("%d alarms: %s", n, out.String())
	}
	if p.logs.room("default", 0) {
		t.Error("a log at more than 80 % has room")
	}
	for _, tenant := range p.logs.tenants {
		if err := p.logs.purgeSubject(t.Context(), tenant, subjects.Log(tenant)); err != nil {
			t.Fatal(err)
		}
	}
	look()
	if n := strings.Count(out.String(), `"alarm":"log_pressure","raised":false`); n != 1 || !p.logs.room("default", 1<<19) {
		t.Errorf("%d alarms were taken back", n)
	}
}

func TestS027_SubjectsThatNoRecordKnows(t *testing.T) {
	r := newRig(t)
	p := r.parts()
	running := keep(t, r, p, 2, nil)
	fresh := keep(t, r, p, 2, endedBy(channel.ByWorker))
	stale := keep(t, r, p, 2, func(rec channel.Record) channel.Record {
		rec, _ = rec.WithEnd(time.Now().Add(-time.Hour), channel.ByWorker, wire.ExitedWith(0), nil)
		return rec
	})
	unknown := running
	unknown.ID = uuid.New()
	rerouted := running
	rerouted.Home.Route = "r2"
	strange := []string{
		logChannel(unknown).Data(subjects.Up), logChannel(rerouted).Data(subjects.Down),
		"weft.v1.ch.default.junk", "weft.v1.ch.default.ZZ.r1.x.y.sideways",
	}
	for _, s := range strange {
		r.store(s, []byte("x"))
	}
	// The table forgets what has ended; the record is found all the same.
	e, _ := p.store.channels.peek(keyOf(fresh))
	p.store.channels.forget(keyOf(fresh), e.rev)
	now := time.Now()
	in := func() map[string]uint64 {
		t.Helper()
		m, err := p.logs.subjects(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	sweep := func(after time.Duration) {
		t.Helper()
		if err := p.keeper.sweep(t.Context(), "default", now.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	sweep(0)
	sweep(strangerAge - time.Second)
	if got := in(); len(got) != 2+len(strange) {
		t.Fatalf("within the first minute: %v", got)
	}
	if kept(t, p, stale) != 0 {
		t.Error("late frames of a channel that ended long ago are kept")
	}
	sweep(strangerAge)
	if got := in(); len(got) != 2 || kept(t, p, running) != 2 || kept(t, p, fresh) != 2 {
		t.Fatalf("after a minute: %v", got)
	}
	if n := len(p.keeper.strangers["default"]); n != 0 {
		t.Errorf("%d strangers are remembered", n)
	}
	// Without the store nobody is a stranger.
	r.store(strange[0], []byte("x"))
	sweep(2 * strangerAge)
	if err := r.js().DeleteStream(t.Context(), "KV_"+bucketChannels); err != nil {
		t.Fatal(err)
	}
	if err := p.keeper.sweep(t.Context(), "default", now.Add(4*strangerAge)); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("without the store: %v", err)
	}
	if got := in(); len(got) != 3 {
		t.Errorf("without the store: %v", got)
	}
}
