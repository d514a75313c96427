package client

import (
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/wire"
)

// DefaultTenant is the tenant of a client that names none.
const DefaultTenant = "default"

// Auth is how the connection says who it is: a token, a user with a password,
// a credentials file or an nkey file. Leave empty what the server does not ask for.
type Auth = natsbus.Auth

// TLS names PEM files: the CA that the server's certificate must come from, and
// a certificate with its key if the server asks for one.
type TLS = natsbus.TLS

// Options of Connect. One of URL and InProcess is required.
type Options struct {
	// URL is the address of the NATS server, or several separated by commas.
	URL string
	// InProcess makes connections to a server in the same process instead.
	InProcess interface{ InProcessConn() (net.Conn, error) }
	Auth      Auth
	TLS       TLS
	// Tenant is who leases belong to; default DefaultTenant.
	Tenant string
	// Name is what the server's operator sees of this connection.
	Name string
	// InboxPrefix is the first token of reply subjects, for users with permission
	// lists; it begins with _INBOX, which is the default.
	InboxPrefix string
	// RequestTimeout bounds every request to the coordinators, repeats included;
	// default 10 s. It does not bound how long a command runs.
	RequestTimeout time.Duration
	// Ping is how often a silent server is asked whether it is there; after two
	// unanswered questions the connection counts as lost. Default 2 s.
	Ping time.Duration
	// GiveUpAfter ends the channels of a client whose connection has been down
	// for so long, with outcome unknown. 0: they wait for the connection's return.
	GiveUpAfter time.Duration
	// OnNotice, if set, is told what a person should know while a call waits. It
	// may be called from several goroutines and must not block.
	OnNotice func(Notice)
	Log      zerolog.Logger
}

// NoticeKind is what a Notice is about.
type NoticeKind string

// The kinds of notice.
const (
	ConnectionLost NoticeKind = "connection_lost" // it is being restored
	ConnectionBack NoticeKind = "connection_back"
	WorkerSilent   NoticeKind = "worker_silent" // a keepalive was not answered
	WorkerBack     NoticeKind = "worker_back"
	WorkerGone     NoticeKind = "worker_lost" // on the coordinators' record
	LeaseGone      NoticeKind = "lease_lost"  // a renewal was refused for good
)

// Notice tells about the state of something that calls wait for.
type Notice struct {
	Kind  NoticeKind
	Route string // of a worker
	Lease string // of a lease
	Text  string // a sentence for a person
}

const (
	defaultRequestTimeout = 10 * time.Second
	connectWait           = 10 * time.Second
)

func (o Options) withDefaults() Options {
	if o.Tenant == "" {
		o.Tenant = DefaultTenant
	}
	if o.Name == "" {
		o.Name = "weft-client"
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = defaultRequestTimeout
	}
	return o
}

func (o Options) check() error {
	if err := wire.CheckTenant(o.Tenant); err != nil {
		return err
	}
	if min(o.RequestTimeout, o.GiveUpAfter, o.Ping) < 0 {
		return wire.Errorf(CodeInvalidArgument, "a time limit of the client is negative")
	}
	return nil
}

// bus translates o for the adapter; the callbacks belong to c.
func (o Options) bus(c *Client) natsbus.Options {
	b := natsbus.Options{
		URL: o.URL, Auth: o.Auth, TLS: o.TLS, Name: o.Name, InboxPrefix: o.InboxPrefix,
		Log: o.Log, Wait: connectWait, Ping: o.Ping, OnUp: c.onUp, OnDown: c.onDown,
	}
	if o.InProcess != nil {
		b.InProcess = o.InProcess
	}
	return b
}
