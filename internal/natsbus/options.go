package natsbus

import (
	"cmp"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/wire"
)

// InProcess makes connections to a server in the same process; the embedded
// server is one.
type InProcess interface {
	InProcessConn() (net.Conn, error)
}

// Auth is how a connection says who it is. Leave empty what the server does
// not ask for.
type Auth struct {
	Token          string
	User, Password string
	CredsFile      string // a .creds file (JWT and seed)
	NKeyFile       string // a file with an nkey seed
}

// TLS names PEM files. CA alone checks the server; Cert and Key also present
// a certificate.
type TLS struct {
	CA, Cert, Key string
}

// Options of Connect. One of URL and InProcess is required.
type Options struct {
	URL       string // one or several, separated by commas
	InProcess InProcess
	Auth      Auth
	TLS       TLS
	Name      string // shown to the server's operator
	Log       zerolog.Logger

	// InboxPrefix is the first token of reply subjects and begins with _INBOX;
	// that is its default. Users with permission lists have one of their own.
	InboxPrefix string
	// Wait bounds how long Connect tries while no server answers; 0 is until
	// its context ends.
	Wait time.Duration
	// Ping is the interval at which a silent server is asked; after two
	// unanswered ones the connection counts as down. Default 2 s.
	Ping time.Duration
	// Reconnect is the mean time between two attempts to come back. Default 1 s.
	Reconnect time.Duration

	// OnUp and OnDown tell changes of the connection, each after the other, from
	// one goroutine; the first OnUp may come before Connect has returned. They
	// must not block.
	OnUp, OnDown func()
}

const (
	defaultPing      = 2 * time.Second
	defaultReconnect = time.Second
	maxPingsOut      = 2
	dialTimeout      = 2 * time.Second
	// flusherTimeout bounds a write to a peer that does not read. nats.go holds
	// the connection's lock meanwhile, so everything else waits as long.
	flusherTimeout = 5 * time.Second
	inboxPrefix    = "_INBOX"
)

func (o Options) check() error {
	if (o.URL == "") == (o.InProcess == nil) {
		return wire.Errorf(wire.CodeInvalidArgument, "give either the URL of a NATS server or an in-process one")
	}
	for u := range strings.SplitSeq(o.URL, ",") {
		if u = strings.TrimSpace(u); !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		// Its text may hold a password, so it is not repeated.
		if _, err := url.Parse(u); err != nil {
			return wire.Errorf(wire.CodeInvalidArgument, "the address of the NATS server is not a URL such as nats://127.0.0.1:4222")
		}
	}
	if o.InboxPrefix != "" && !validInbox(o.InboxPrefix) {
		return wire.Errorf(wire.CodeInvalidArgument, "the inbox prefix must begin with %s and hold only letters, digits, - and _", inboxPrefix)
	}
	for _, f := range [...]struct{ what, path string }{
		{"credentials file", o.Auth.CredsFile}, {"nkey file", o.Auth.NKeyFile},
		{"CA file", o.TLS.CA}, {"certificate file", o.TLS.Cert}, {"key file", o.TLS.Key},
	} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			return wire.Errorf(wire.CodeInvalidArgument, "the %s cannot be read: %v", f.what, err)
		}
	}
	if (o.TLS.Cert == "") != (o.TLS.Key == "") {
		return wire.Errorf(wire.CodeInvalidArgument, "a client certificate needs both the certificate and the key file")
	}
	return nil
}

// nats translates o; the callbacks belong to c.
func (o Options) nats(c *Conn) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(dialTimeout),
		nats.SkipHostLookup(), // the dialer resolves within its timeout
		nats.PingInterval(cmp.Or(o.Ping, defaultPing)),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.FlusherTimeout(flusherTimeout),
		nats.ReconnectBufSize(-1), // nothing waits for a server that is away
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(backoff(cmp.Or(o.Reconnect, defaultReconnect))),
		// A server may come back before its users do; giving up for good would
		// need a restart of the process.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomInboxPrefix(cmp.Or(o.InboxPrefix, inboxPrefix)),
		nats.ConnectHandler(func(*nats.Conn) { c.up(true) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.up(false) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.down(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			c.seldom.Info().Err(err).Msg("the NATS server does not answer; still trying")
		}),
		nats.ErrorHandler(c.asyncError),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	if o.TLS.CA != "" {
		opts = append(opts, nats.RootCAs(o.TLS.CA))
	}
	if o.TLS.Cert != "" {
		opts = append(opts, nats.ClientCert(o.TLS.Cert, o.TLS.Key))
	}
	return o.Auth.nats(opts)
}

func (a Auth) nats(opts []nats.Option) ([]nats.Option, error) {
	if a.Token != "" {
		opts = append(opts, nats.Token(a.Token))
	}
	if a.User != "" {
		opts = append(opts, nats.UserInfo(a.User, a.Password))
	}
	if a.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(a.CredsFile))
	}
	if a.NKeyFile != "" {
		opt, err := nats.NkeyOptionFromSeed(a.NKeyFile)
		if err != nil {
			return nil, wire.Errorf(wire.CodeInvalidArgument, "the nkey file holds no usable seed")
		}
		opts = append(opts, opt)
	}
	return opts, nil
}

// backoff spreads the attempts of many processes that lost the same server at
// the same moment: the first is uniform over twice the mean from zero, so a
// fleet does not come in a burst, the others between half and three halves,
// stretched up to twice as long while the server stays away.
func backoff(mean time.Duration) func(attempt int) time.Duration {
	return func(attempt int) time.Duration {
		if attempt <= 1 {
			return rand.N(mean)
		}
		d := mean + mean*time.Duration(min(attempt, 10)-2)/8
		return d/2 + rand.N(d)
	}
}
