// Package gate is the order in which an open is checked, and what each refusal
// says. The first check that fails answers; a later one has not run by then, so
// it can have had no effect.
//
// Checks 1 to 8 are Check: pure over an Input, whose costly or effectful facts
// are functions, called when their check is reached and not before. Checks 9 to
// 12 (record, worker, sandbox, acceptance) are I/O and belong to the
// coordinator, which takes their refusals from here so that every text of the
// gate stands in one place.
//
//	 #  condition                          code
//	 1  arguments valid                    INVALID_ARGUMENT, PAYLOAD_TOO_LARGE
//	 2  lease is there and the tenant's    NOT_FOUND
//	 3  active, not expired, epoch         LEASE_EXPIRED, LEASE_RELEASED, LEASE_LOST, STALE_EPOCH
//	 4  driver registered, can do duplex   DRIVER_NOT_REGISTERED, DRIVER_NO_DUPLEX
//	 5  capability                         DUPLEX_CHANNEL_CAPABILITY_DENIED
//	 6  sandboxProviderPlugin              DUPLEX_UNSUPPORTED_FOR_LEASE
//	 7  metadata complete                  LEASE_METADATA_INCOMPLETE
//	 8  quotas                             DUPLEX_CHANNEL_ROUTE_BUSY, QUOTA_EXCEEDED
//	 9  record created                     UNAVAILABLE, CONFLICT
//	10  worker live                        WORKER_NOT_RUNNING, WORKER_DRAINING
//	11  sandbox found                      SANDBOX_NOT_CACHED
//	12  worker accepts                     DUPLEX_CHANNEL_OPEN_FAILED
//
// A one-shot execution passes 1 to 3, of 4 only that the driver is registered,
// 5 for its own capability, neither 6 nor 7, then 8 to 12.
//
// Attach and observe by another than the opener pass 1 to 7 as an open does, and
// 10 to 12; they take no place (8) and make no record (9).
//
// Check 3 can also answer UNAVAILABLE: a lease that is still pending, or a store
// that cannot be read at check 2.
package gate

import (
	"strings"
	"time"

	"github.com/weft-fabric/weft/internal/lease"
	"github.com/weft-fabric/weft/internal/wire"
)

// Input is one open to be judged. Nil functions count as a fact that is not
// known, which refuses; only Arguments and Disabled may be nil.
type Input struct {
	Mode   wire.Mode
	Tenant string // whose request it is
	Epoch  wire.Epoch
	Now    time.Time

	// Arguments is check 1; nil if it has been made.
	Arguments func() error
	// Lease reads the record, nil if there is none. An error that is no
	// *wire.Error refuses with UNAVAILABLE.
	Lease func() (*lease.Record, error)
	// Driver looks the lease's driver up on the lease's worker.
	Driver func(lease.Record) Driver
	// Capability reads what plugin and worker say of a capability. An error
	// means that it cannot be known.
	Capability func(lease.Record, wire.Capability) (Capability, error)
	// Disabled reports whether the configuration disables a plugin; nil: none.
	Disabled func(plugin string) bool
	// Quota counts, and takes a place if that is how it counts: RouteBusy, QuotaExceeded.
	Quota func(lease.Record) error
}

// Driver is what check 4 has to know.
type Driver struct {
	Registered bool
	Duplex     bool
}

// Capability is what check 5 has to know beside the lease.
type Capability struct {
	Declared bool // by the plugin, for the lease's provider
	Verified bool // its verb, on the worker's current instance
}

// Check makes checks 1 to 8 and returns the lease that was judged, from which
// tenant, worker and provider lease id have to be taken. The error is the first
// refusal.
func Check(in Input) (lease.Record, error) {
	if in.Arguments != nil {
		if err := in.Arguments(); err != nil {
			return lease.Record{}, err
		}
	}
	r, err := in.lease()
	if err != nil {
		return lease.Record{}, err
	}
	checks := []func(Input, lease.Record) error{
		checkUse, checkDriver, checkCapability, checkSupported, checkMetadata, checkQuota,
	}
	if in.Mode == wire.ModeExecute {
		checks = []func(Input, lease.Record) error{checkUse, checkDriver, checkCapability, checkQuota}
	}
	for _, check := range checks {
		if err := check(in, r); err != nil {
			return lease.Record{}, err
		}
	}
	return r, nil
}

func (in Input) lease() (lease.Record, error) {
	if in.Lease == nil {
		return lease.Record{}, Undecided()
	}
	r, err := in.Lease()
	switch {
	case wire.CodeOf(err) == wire.CodeNotFound:
		return lease.Record{}, lease.NotFound()
	case wire.CodeOf(err) != "":
		return lease.Record{}, err
	case err != nil:
		return lease.Record{}, Undecided()
	case r == nil || r.Tenant != in.Tenant:
		return lease.Record{}, lease.NotFound()
	}
	return *r, nil
}

func checkUse(in Input, r lease.Record) error { return r.CheckUse(in.Now, in.Epoch) }

func checkDriver(in Input, r lease.Record) error {
	var d Driver
	if in.Driver != nil {
		d = in.Driver(r)
	}
	switch {
	case !d.Registered:
		return refuse(wire.CodeDriverNotRegistered, "the lease's driver is not registered by its worker; ask the operator to start a worker with it, then acquire a new lease")
	case !d.Duplex && in.Mode != wire.ModeExecute:
		return refuse(wire.CodeDriverNoDuplex, "the lease's driver cannot hold a duplex channel; "+oneShot)
	}
	return nil
}

func checkCapability(in Input, r lease.Record) error {
	c := capabilityOf(in.Mode)
	var have Capability
	var err error
	if in.Capability != nil {
		have, err = in.Capability(r, c)
	}
	why := ""
	switch {
	case err != nil:
		why = "cannot be read"
	case !have.Declared:
		why = "is not declared by the lease's plugin"
	case !have.Verified:
		why = "is not verified on the lease's worker"
	case !r.Allows(c):
		why = "is withdrawn on this lease"
	default:
		return nil
	}
	then := oneShot
	if c == wire.CapExecute {
		then = "acquire a lease from a plugin that has it"
	}
	return refuse(wire.CodeCapabilityDenied, "capability "+string(c)+" "+why+"; "+then).With("capability", string(c))
}

func capabilityOf(m wire.Mode) wire.Capability {
	if m == wire.ModeExecute {
		return wire.CapExecute
	}
	return wire.CapDuplexCommandStream
}

func checkSupported(in Input, r lease.Record) error {
	plugin := r.Sandbox.Metadata[wire.MetadataSandboxProviderPlugin]
	switch {
	case plugin == "":
		return refuse(wire.CodeDuplexUnsupported, "the lease does not support duplex channels: no plugin worker has provisioned its sandbox; "+oneShot)
	case in.Disabled != nil && in.Disabled(plugin):
		return refuse(wire.CodeDuplexUnsupported, "the lease does not support duplex channels: its plugin is disabled here; "+oneShot)
	}
	return nil
}

func checkMetadata(_ Input, r lease.Record) error {
	var missing []string
	for _, f := range []struct{ key, value string }{
		{"metadata." + wire.MetadataPluginID, r.Sandbox.Metadata[wire.MetadataPluginID]},
		{"metadata." + wire.MetadataProvider, r.Sandbox.Metadata[wire.MetadataProvider]},
		{"providerLeaseId", r.Sandbox.ProviderLeaseID},
	} {
		if f.value == "" {
			missing = append(missing, f.key)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	keys := strings.Join(missing, ", ")
	return refuse(wire.CodeMetadataIncomplete, "the lease lacks "+keys+", which its worker has to write when it provisions; "+oneShot+", and tell the operator").
		With("missing", keys)
}

func checkQuota(in Input, r lease.Record) error {
	if in.Quota == nil {
		return Undecided()
	}
	return in.Quota(r)
}
