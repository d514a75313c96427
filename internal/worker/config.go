package worker

import (
	"cmp"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

// Config describes a worker.
type Config struct {
	// Bus says how to reach NATS. Run makes two connections from it; Name, OnUp
	// and OnDown are the worker's to set.
	Bus natsbus.Options
	// ID is the worker's name, a token.
	ID string
	// Plugin is the plugin that the worker hosts, in metadata the pluginId and the
	// sandboxProviderPlugin.
	Plugin string
	// Provider is the key of the one sandbox provider; "": the driver's name.
	Provider string
	// Driver makes the sandboxes. Whoever made it closes it, after Run.
	Driver sandbox.Driver
	// Slots is how many leases the worker holds at once.
	Slots  int
	Labels map[string]string
	// StateDir keeps what must survive a restart: the route. Spilled output is
	// there as well, and does not survive.
	StateDir string
	// InsecureOrders takes orders without checking who signed them. It is
	// required as long as no other way is implemented.
	InsecureOrders bool
	Limits         Limits
	Log            zerolog.Logger
}

// Limits are bounds and times. Zero fields take the default.
type Limits struct {
	Channels int // on one lease, if the order names no limit: 16
	Orders   int // carried out at once: 256
	Ended    int // ends and epochs remembered: 10,000
	Untaken  int // channels of a lease that have ended and wait for their readers: 64

	// Bytes. In flight is output that was sent and that no reader has taken.
	InFlightWorker int64 // of all channels: 256 MiB
	InFlightLease  int64 // of the channels of one lease: 16 MiB
	Spill          int64 // of a channel whose client is away, on disk: 64 MiB; below 0: none, the command waits
	SpillWorker    int64 // of all channels: 4 GiB

	Keepalive time.Duration // of a client; three missed are a detached client: 5 s
	Drain     time.Duration // for descendants that hold the pipes of a command: 2 s
	Forget    time.Duration // after its end, for a reader to come: 10 min
	Flush     time.Duration // at a stop, for bytes and reports to be taken: 2 s
}

func (l Limits) withDefaults() Limits {
	l.Channels = cmp.Or(l.Channels, 16)
	l.Orders = cmp.Or(l.Orders, 256)
	l.Ended = cmp.Or(l.Ended, 10_000)
	l.Untaken = cmp.Or(l.Untaken, 64)
	l.InFlightWorker = cmp.Or(l.InFlightWorker, 256<<20)
	l.InFlightLease = cmp.Or(l.InFlightLease, 16<<20)
	l.Spill = cmp.Or(l.Spill, 64<<20)
	l.SpillWorker = cmp.Or(l.SpillWorker, 4<<30)
	l.Keepalive = cmp.Or(l.Keepalive, 5*time.Second)
	l.Drain = cmp.Or(l.Drain, sandbox.DefaultDrainBound)
	l.Forget = cmp.Or(l.Forget, 10*time.Minute)
	l.Flush = cmp.Or(l.Flush, 2*time.Second)
	return l
}

// beatPeriod is fixed: coordinators judge by it.
const beatPeriod = 2 * time.Second

func (c Config) check() error {
	for _, t := range []struct{ what, value string }{
		{"the worker's id", c.ID}, {"the plugin", c.Plugin}, {"the provider", c.Provider},
	} {
		if err := wire.CheckToken(t.what, t.value); err != nil {
			return err
		}
	}
	switch {
	case c.Driver == nil:
		return wire.Errorf(wire.CodeInvalidArgument, "a worker needs a driver")
	case c.Slots < 1:
		return wire.Errorf(wire.CodeInvalidArgument, "a worker needs at least one slot")
	case c.Limits.InFlightLease < wire.MaxPayload || c.Limits.InFlightWorker < wire.MaxPayload:
		return wire.Errorf(wire.CodeInvalidArgument, "less than one frame (%d bytes) in flight would move nothing", wire.MaxPayload)
	case c.StateDir == "":
		return wire.Errorf(wire.CodeInvalidArgument, "a worker needs a directory for its state")
	case !c.InsecureOrders:
		return wire.Errorf(wire.CodeUnauthenticated,
			"this worker cannot check the signatures of orders yet and would refuse every one; "+
				"run it with --insecure-orders on a NATS server that only you can reach")
	}
	return nil
}
