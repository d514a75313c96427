package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weft-fabric/weft/internal/registry"
	"github.com/weft-fabric/weft/internal/wire"
)

// Bounds of a stored record.
const (
	MaxRecord  = 48 << 10 // bytes
	maxReason  = 512      // bytes; a longer reason is cut off
	maxLabels  = 16 << 10 // bytes of the requested labels as JSON
	maxSandbox = 16 << 10 // bytes of the sandbox as JSON
	maxName    = 256      // bytes of an environment, a provider lease id
)

// Request is an acquire with what the coordinator knows of its caller and of
// its own store.
type Request struct {
	Tenant      string
	Holder      string // the NATS user, "" in one account without users
	Incarnation string // of the store
	wire.AcquireRequest
}

// New is the pending record of an acquire, with epoch 0 until it is Placed. The
// error is INVALID_ARGUMENT and names the field.
func New(now time.Time, q Request) (Record, error) {
	if err := q.check(); err != nil {
		return Record{}, err
	}
	now = stamp(now)
	ttl, life := DefaultTTL.Milliseconds(), MaxLife
	if q.TTLMS != 0 {
		ttl = q.TTLMS
	}
	if q.LifeMS != 0 {
		life = time.Duration(q.LifeMS) * time.Millisecond
	}
	policy := Ephemeral
	if q.Policy != "" {
		policy = Policy(q.Policy)
	}
	return Record{
		ID: ID(q.Tenant, q.IdempotencyKey), Tenant: q.Tenant, Environment: q.Environment, Holder: q.Holder,
		Policy: policy, State: Pending, Epoch: wire.Epoch{Incarnation: q.Incarnation}, TTLMS: ttl,
		Requested: Requested{
			Plugin: q.Plugin, Provider: q.Provider, Labels: q.Labels,
			Key: q.IdempotencyKey, Hash: RequestHash(q.AcquireRequest),
		},
		Times: Times{Created: now, Changed: now, Renewed: now, LifeEnds: now.Add(life)},
	}, nil
}

// RequestHash names the content of an acquire; equal requests have equal hashes.
func RequestHash(q wire.AcquireRequest) string {
	h := sha256.Sum256(wire.Encode(q))
	return hex.EncodeToString(h[:])
}

// Matches returns CONFLICT unless a repeated acquire asks for what the first did.
func (r Record) Matches(q wire.AcquireRequest) error {
	if r.Requested.Key != q.IdempotencyKey || r.Requested.Hash != RequestHash(q) {
		return wire.Errorf(wire.CodeConflict, "this idempotency key was used with another request; use a new key for a new lease")
	}
	return nil
}

func (q Request) check() error {
	if err := wire.CheckTenant(q.Tenant); err != nil {
		return err
	}
	if err := CheckKey(q.IdempotencyKey); err != nil {
		return err
	}
	if q.Environment != "" {
		if err := wire.CheckName("environment", q.Environment, maxName); err != nil {
			return err
		}
	}
	if err := (registry.Query{Plugin: q.Plugin, Provider: q.Provider, Labels: q.Labels}).Check(); err != nil {
		return err
	}
	if len(wire.Encode(q.Labels)) > maxLabels {
		return wire.Errorf(wire.CodeInvalidArgument, "labels take more than %d bytes as JSON", maxLabels)
	}
	switch Policy(q.Policy) {
	case "", Ephemeral:
	case ReuseByEnvironment, RetainOnFailure:
		return wire.Errorf(wire.CodeInvalidArgument, "policy %q is not served yet; leave it out or use %q", q.Policy, Ephemeral)
	default:
		return wire.Errorf(wire.CodeInvalidArgument, "policy is none of %q, %q, %q", Ephemeral, ReuseByEnvironment, RetainOnFailure)
	}
	if q.TTLMS != 0 && (q.TTLMS < MinTTL.Milliseconds() || q.TTLMS > MaxTTL.Milliseconds()) {
		return wire.Errorf(wire.CodeInvalidArgument, "ttlMs is out of range; want %d to %d", MinTTL.Milliseconds(), MaxTTL.Milliseconds())
	}
	if q.LifeMS != 0 && (q.LifeMS < MinTTL.Milliseconds() || q.LifeMS > MaxLife.Milliseconds()) {
		return wire.Errorf(wire.CodeInvalidArgument, "lifeMs is out of range; want %d to %d", MinTTL.Milliseconds(), MaxLife.Milliseconds())
	}
	return nil
}

// CheckKey returns INVALID_ARGUMENT unless s is an idempotency key: 1 to 128
// bytes of printable ASCII.
func CheckKey(s string) error {
	if s == "" || len(s) > MaxKey {
		return wire.Errorf(wire.CodeInvalidArgument, "idempotencyKey is empty or longer than %d bytes", MaxKey)
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7e {
			return wire.Errorf(wire.CodeInvalidArgument, "idempotencyKey has a byte that is not printable ASCII at position %d", i)
		}
	}
	return nil
}

// TTL is how long the lease lives without a renewal.
func (r Record) TTL() time.Duration { return time.Duration(r.TTLMS) * time.Millisecond }

// HardEnd is the end that no renewal passes.
func (r Record) HardEnd() time.Time {
	end := r.Times.LifeEnds
	if p := r.Times.ProviderEnds; !p.IsZero() && p.Before(end) {
		return p
	}
	return end
}

// ExpiresAt is when the lease ends if it is not renewed again.
func (r Record) ExpiresAt() time.Time {
	if t := r.Times.Renewed.Add(r.TTL()); t.Before(r.HardEnd()) {
		return t
	}
	return r.HardEnd()
}

// View is what the tenant sees.
func (r Record) View() wire.Lease {
	return wire.Lease{
		ID: r.ID, Tenant: r.Tenant, Environment: r.Environment, Driver: r.Sandbox.Driver,
		State: string(r.State), Policy: string(r.Policy), Epoch: r.Epoch, Route: r.Place.Route,
		Plugin: r.Requested.Plugin, Provider: r.Requested.Provider,
		ProviderLeaseID: r.Sandbox.ProviderLeaseID, Metadata: r.Sandbox.Metadata,
		Capabilities: r.allowed(), TTLMS: r.TTLMS, CreatedAt: r.Times.Created,
		ExpiresAt: r.ExpiresAt(), Reason: r.Reason,
	}
}

func (r Record) allowed() []wire.Capability {
	var out []wire.Capability
	for _, c := range r.Sandbox.Capabilities {
		if r.Allows(c) {
			out = append(out, c)
		}
	}
	return out
}

// Encode is the stored form.
func (r Record) Encode() []byte { return wire.Encode(r) }

// Decode reads a stored record and refuses what Encode does not write.
func Decode(data []byte) (Record, error) {
	var r Record
	if err := wire.DecodeStrict(data, MaxRecord, &r); err != nil {
		return Record{}, fmt.Errorf("lease: stored record: %v", err)
	}
	if err := r.check(); err != nil {
		return Record{}, fmt.Errorf("lease: stored record: %v", err)
	}
	return r, nil
}

func (r Record) check() error {
	if err := wire.CheckTenant(r.Tenant); err != nil {
		return err
	}
	if err := CheckKey(r.Requested.Key); err != nil {
		return err
	}
	if p := r.Place; p != (Place{}) {
		for _, t := range []struct{ name, value string }{{"worker", p.Worker}, {"instance", p.Instance}, {"route", p.Route}} {
			if err := wire.CheckToken(t.name, t.value); err != nil {
				return err
			}
		}
	}
	if err := r.Sandbox.check(); err != nil {
		return err
	}
	c := r.Cleanup
	switch {
	case r.ID != ID(r.Tenant, r.Requested.Key):
		return fmt.Errorf("id is not that of its tenant and key")
	case !r.State.known():
		return fmt.Errorf("state is unknown")
	case r.TTLMS < MinTTL.Milliseconds() || r.TTLMS > MaxTTL.Milliseconds():
		return fmt.Errorf("ttlMs is out of range")
	case r.State == PendingCleanup && c == nil:
		return fmt.Errorf("pending_cleanup without a cleanup")
	case c != nil && (c.Attempts < 0 || c.For != Released && c.For != Expired && c.For != Failed):
		return fmt.Errorf("cleanup is not one")
	case r.State == Active && (r.Place == Place{} || r.Epoch.N == 0):
		return fmt.Errorf("active without a worker or an epoch")
	case r.State.Ended() == r.Times.Ended.IsZero():
		return fmt.Errorf("state and end time disagree")
	}
	return nil
}

func (s Sandbox) check() error {
	for _, f := range []struct{ name, value string }{{"driver", s.Driver}, {"providerLeaseId", s.ProviderLeaseID}} {
		if f.value == "" {
			continue
		}
		if err := wire.CheckName(f.name, f.value, maxName); err != nil {
			return err
		}
	}
	if len(wire.Encode(s)) > maxSandbox {
		return fmt.Errorf("metadata and capabilities take more than %d bytes as JSON", maxSandbox)
	}
	for k, v := range s.Metadata {
		if err := wire.CheckName("a metadata key", k, registry.MaxKey); err != nil {
			return err
		}
		if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
			return fmt.Errorf("a metadata value is not UTF-8 or holds NUL")
		}
	}
	return nil
}

// clip bounds a reason without cutting a character in two.
func clip(s string) string {
	if len(s) <= maxReason {
		return strings.ToValidUTF8(s, "")
	}
	return strings.ToValidUTF8(s[:maxReason], "")
}
