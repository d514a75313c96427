package coordinator

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Version is what this coordinator calls itself.
const Version = "0.1.0"

// Config has the settings of a Coordinator. Zero fields take the default.
type Config struct {
	Name            string          // in logs and replies; default "coordinator"
	NATS            natsbus.Options // Name, Log, OnUp and OnDown are set by the coordinator
	Tenants         []string        // who is served; default {"default"}
	DisabledPlugins []string        // plugin keys for which gate row 6 refuses
	// WorkerLostAfter is the silence after which a worker's leases and channels
	// are written lost; default 60 s. It is raised to the suspect time plus one
	// probe if it is less.
	WorkerLostAfter time.Duration
	Replicas        int // of buckets and logs; default 1
	Limits          Limits
	Log             zerolog.Logger
}

// Limits are the bounds of docs/PROTOCOL.md, "Limits", as far as coordinators
// hold them; info reports them.
type Limits struct {
	ChannelsPerLease  int           // 16; the worker has the exact word
	ChannelsPerTenant int           // 1,000, by each coordinator's own table
	LeasesPerTenant   int           // 1,000, likewise
	Workers           int           // 10,000 in the registry
	Requests          int           // 256 at work at once, of tenants and of workers each
	LogBytes          int64         // of each tenant's log stream; 0: 1 GiB, less if the server has no room
	ChannelLogBytes   int64         // 512 KiB of the log reserved for each channel that has not ended
	Open              time.Duration // 10 s from the request to its answer
	Bind              time.Duration // 60 s until a lease that is being granted fails
	LeaseLife         time.Duration // 7 days
}

// Settings of the fleet that are not configurable yet.
const (
	beatPeriod   = 2 * time.Second
	missedBeats  = 3
	probeTimeout = time.Second
	purgeAfter   = 10 * time.Minute // after a channel's end
)

// MinWorkerLostAfter is the least Config.WorkerLostAfter: a worker is first
// suspected and asked. Less is taken as this.
const MinWorkerLostAfter = missedBeats*beatPeriod + probeTimeout

func (c Config) withDefaults() Config {
	def(&c.Name, "coordinator")
	def(&c.Replicas, 1)
	def(&c.WorkerLostAfter, time.Minute)
	c.WorkerLostAfter = max(c.WorkerLostAfter, MinWorkerLostAfter)
	if len(c.Tenants) == 0 {
		c.Tenants = []string{"default"}
	}
	l := &c.Limits
	def(&l.ChannelsPerLease, 16)
	def(&l.ChannelsPerTenant, 1000)
	def(&l.LeasesPerTenant, 1000)
	def(&l.Workers, 10_000)
	def(&l.Requests, 256)
	def(&l.ChannelLogBytes, 512<<10)
	def(&l.Open, 10*time.Second)
	def(&l.Bind, time.Minute)
	def(&l.LeaseLife, 7*24*time.Hour)
	return c
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c Config) check() error {
	for _, t := range c.Tenants {
		if err := subjects.CheckToken(t); err != nil {
			return wire.Errorf(wire.CodeInvalidArgument, "tenant %q %v", t, err)
		}
	}
	l := c.Limits
	if min(l.ChannelsPerLease, l.ChannelsPerTenant, l.LeasesPerTenant, l.Workers, l.Requests, c.Replicas) < 1 ||
		min(l.Open, l.Bind, l.LeaseLife) <= 0 || (l.LogBytes != 0 && l.LogBytes < 1<<20) || l.ChannelLogBytes < 1 {
		return wire.Errorf(wire.CodeInvalidArgument, "a limit is below its least value (1; a log 1 MiB)")
	}
	return nil
}

// logSizes are the acceptable sizes of a log stream, the wanted one first.
func (l Limits) logSizes() []int64 {
	if l.LogBytes != 0 {
		return []int64{l.LogBytes}
	}
	return []int64{1 << 30, 256 << 20, 64 << 20}
}

// info is the limits as api info reports them, durations in milliseconds.
func (l Limits) info() map[string]int64 {
	return map[string]int64{
		"frameBytes": wire.MaxPayload, "execBodyBytes": wire.MaxExecBody, "controlBytes": wire.MaxControlBody,
		"argv": wire.MaxArgv, "argBytes": wire.MaxArg, "env": wire.MaxEnv,
		"channelsPerLease": int64(l.ChannelsPerLease), "channelsPerTenant": int64(l.ChannelsPerTenant),
		"leasesPerTenant": int64(l.LeasesPerTenant), "workers": int64(l.Workers), "logBytes": l.logSizes()[0],
		"channelLogBytes": l.ChannelLogBytes, "replayBytes": wire.MaxReplay,
		"openMs": l.Open.Milliseconds(), "bindMs": l.Bind.Milliseconds(), "leaseLifeMs": l.LeaseLife.Milliseconds(),
	}
}
