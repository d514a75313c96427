package coordinator

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/channel"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// BenchmarkOpen is an open through the gate: two request hops and one guarded
// write with an fsync.
func BenchmarkOpen(b *testing.B) {
	r := newRig(b)
	r.coordinator(func(c *Config) { c.Limits.ChannelsPerLease, c.Limits.ChannelsPerTenant = 1<<30, 1<<30 })
	r.double("w1")
	l := r.acquire("one")
	for b.Loop() {
		r.open(openOf(l, wire.ModeDuplex, "true"))
	}
}

// BenchmarkRequest is the least that a request to a coordinator takes.
func BenchmarkRequest(b *testing.B) {
	r := newRig(b)
	r.coordinator()
	for b.Loop() {
		if _, err := r.nc.Request(subjects.API("default", subjects.APIInfo), []byte(`{}`), time.Second); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is one guarded write to a bucket: what check 9 costs.
func BenchmarkCreate(b *testing.B) {
	r := newRig(b)
	js := r.js()
	s, err := openStore(b.Context(), js, 1, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		id := uuid.New()
		rec := channel.New(time.Now(), "default", uuid.NewString(), id, wire.ModeDuplex, nil, channel.Home{Worker: "w", Instance: "i", Route: "r"}, wire.NewSecret())
		if _, err := s.channels.create(b.Context(), keyOf(rec), rec); err != nil {
			b.Fatal(err)
		}
	}
}
