// Package subjects spells every NATS subject of weft and is the only place
// that does: typed tokens in, string out, and a parser back. An id that is not
// a token is refused, never rewritten; nothing here talks to NATS.
//
// The table of subjects, who may use which, and why there are two for a
// channel's data (the stored ch and its republished twin lv) is in
// docs/PROTOCOL.md, "Subjects".
package subjects

import (
	"fmt"
	"strings"
)

// Prefix is the first two tokens of every weft subject; the second is the
// version of the wire.
const Prefix = "weft.v1"

// MaxToken is the longest token in bytes.
const MaxToken = 63

// Keepalive stands in the lease position of a keepalive subject. Lease ids are
// UUIDs, so it collides with none.
const Keepalive = "keepalive"

// Dir is a direction of a channel: Up from client to worker, Down back.
type Dir uint8

// The two directions; the values are on the wire (the nonce of a frame's tag).
const (
	Up   Dir = 1
	Down Dir = 2
)

func (d Dir) String() string {
	switch d {
	case Up:
		return "up"
	case Down:
		return "down"
	}
	return "invalid"
}

// CheckToken returns an error that names the rule if s is not a token:
// 1 to 63 of a-z, 0-9 and -, with no - at either end.
func CheckToken(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty; want 1 to %d of a-z, 0-9 and -", MaxToken)
	case len(s) > MaxToken:
		return fmt.Errorf("is %d bytes long; want at most %d", len(s), MaxToken)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("begins or ends with -; want a letter or digit at both ends")
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("has a byte other than a-z, 0-9 and - at position %d", i)
		}
	}
	return nil
}

// Channel names one channel on one route. All fields are tokens; Lease and
// Channel are UUIDs in lower case.
type Channel struct {
	Tenant, Route, Lease, Channel string
}

// Check returns an error that names the first field that is not a token.
func (c Channel) Check() error {
	for _, f := range []struct{ name, value string }{
		{"tenant", c.Tenant}, {"route", c.Route}, {"lease", c.Lease}, {"channel", c.Channel},
	} {
		if err := CheckToken(f.value); err != nil {
			return fmt.Errorf("%s %w", f.name, err)
		}
	}
	if len(c.Channel) < 2 {
		return fmt.Errorf("channel is too short to have a shard")
	}
	return nil
}

// Shard is the first two characters of the channel id, the token that spreads
// a tenant's channels over its log streams.
func (c Channel) Shard() string { return c.Channel[:2] }

// Data is the stored subject of a direction; a publisher gets a JetStream ack.
func (c Channel) Data(d Dir) string { return c.tokens("ch", true, d) }

// Live is where a stored frame is republished; receivers listen here only.
func (c Channel) Live(d Dir) string { return c.tokens("lv", true, d) }

// Control is the core subject beside the data, for what must never wait behind it.
func (c Channel) Control(d Dir) string { return c.tokens("ct", false, d) }

func (c Channel) tokens(kind string, shard bool, d Dir) string {
	var b strings.Builder
	b.Grow(len(Prefix) + len(c.Tenant) + len(c.Route) + len(c.Lease) + len(c.Channel) + 24)
	b.WriteString(Prefix)
	b.WriteByte('.')
	b.WriteString(kind)
	b.WriteByte('.')
	b.WriteString(c.Tenant)
	if shard {
		b.WriteByte('.')
		b.WriteString(c.Shard())
	}
	for _, t := range [...]string{c.Route, c.Lease, c.Channel, d.String()} {
		b.WriteByte('.')
		b.WriteString(t)
	}
	return b.String()
}

// KeepaliveUp is the request subject of a client process's keepalive to the
// worker on route; client is the process's UUID.
func KeepaliveUp(tenant, route, client string) string {
	return Channel{Tenant: tenant, Route: route, Lease: Keepalive, Channel: client}.Control(Up)
}

// WorkerLive matches the live up frames of every channel on route.
func WorkerLive(route string) string { return Prefix + ".lv.*.*." + route + ".*.*.up" }

// WorkerControl matches the control messages and keepalives to a route.
func WorkerControl(route string) string { return Prefix + ".ct.*." + route + ".*.*.up" }

// Log is the pattern of everything that a tenant's log stores.
func Log(tenant string) string { return Prefix + ".ch." + tenant + ".>" }

// LogRepublish is the destination pattern that turns ch into lv for a tenant.
func LogRepublish(tenant string) string { return Prefix + ".lv." + tenant + ".>" }

// LogStream is the name of a tenant's log stream number k (0 is the first).
func LogStream(tenant string, k int) string { return fmt.Sprintf("WEFT_CH_%s_%d", tenant, k) }

// Heartbeat is where a worker beats and says goodbye.
func Heartbeat(worker string) string { return Prefix + ".hb." + worker }

// Heartbeats matches the beats of all workers.
func Heartbeats() string { return Prefix + ".hb.*" }

// ToCoordinator is a worker's request to the coordinators; see the WR constants.
func ToCoordinator(worker, verb string) string { return Prefix + ".wr." + worker + "." + verb }

// ToCoordinators matches one verb of all workers.
func ToCoordinators(verb string) string { return Prefix + ".wr.*." + verb }

// ToWorker is a coordinator's order to one worker; see the WK constants.
func ToWorker(worker, verb string) string { return Prefix + ".wk." + worker + "." + verb }

// Orders matches every order to one worker.
func Orders(worker string) string { return Prefix + ".wk." + worker + ".*" }

// API is a tenant's request; see the API constants.
func API(tenant, verb string) string { return Prefix + ".api." + tenant + "." + verb }

// APIs matches one verb of all tenants.
func APIs(verb string) string { return Prefix + ".api.*." + verb }

// Replay is a tenant's request for stored frames.
func Replay(tenant string) string { return Prefix + ".rp." + tenant + ".replay" }

// Operator is an operator's request; see the Op constants.
func Operator(verb string) string { return Prefix + ".op." + verb }

// Event is where an event of a type (lower-case tokens and dots) is stored.
func Event(tenant, typ string) string { return Prefix + ".ev." + tenant + "." + typ }

// Verbs of a tenant (API).
const (
	APIAcquire  = "acquire"
	APIGet      = "get"
	APIList     = "list"
	APIRenew    = "renew"
	APIRelease  = "release"
	APIOpen     = "open"
	APIExecute  = "execute"
	APIAttach   = "attach"
	APIObserve  = "observe"
	APIChannel  = "channel"
	APIChannels = "channels"
	APIKill     = "kill"
	APIInfo     = "info"
)

// Verbs of a worker to the coordinators (ToCoordinator).
const (
	WRRegister  = "register"
	WRRenew     = "renew"
	WREnded     = "ended"
	WRInventory = "inventory"
	WRReplay    = "replay"
)

// Verbs of a coordinator to a worker (ToWorker).
const (
	WKBind      = "bind"
	WKRelease   = "release"
	WKOpen      = "open"
	WKClose     = "close"
	WKAttach    = "attach"
	WKProbe     = "probe"
	WKInventory = "inventory"
	WKDrain     = "drain"
)

// Verbs of an operator (Operator).
const (
	OpWorkers     = "workers"
	OpLeases      = "leases"
	OpChannels    = "channels"
	OpCordon      = "cordon"
	OpUncordon    = "uncordon"
	OpDrain       = "drain"
	OpKill        = "kill"
	OpIncarnation = "incarnation"
)
