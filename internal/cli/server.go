package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

// connFlags say which server and which tenant.
type connFlags struct {
	server, context, creds string
	tenant                 string
}

func (f *connFlags) bind(fs *pflag.FlagSet) {
	fs.StringVarP(&f.server, "server", "s", "", "URL of the NATS server (WEFT_SERVER, NATS_URL)")
	fs.StringVar(&f.context, "context", "", "nats context to take the server from (WEFT_CONTEXT, NATS_CONTEXT)")
	fs.StringVar(&f.creds, "creds", "", "credentials file (WEFT_CREDS, NATS_CREDS)")
	fs.StringVar(&f.tenant, "tenant", "", "tenant that leases belong to (WEFT_TENANT; default default)")
}

// target is a server and how to reach it.
type target struct {
	url  string
	auth client.Auth
	tls  client.TLS
}

// target chooses the server; nil without an error says that none is configured
// or running.
func (a *app) target(f connFlags) (*target, error) {
	if f.server != "" && f.context != "" {
		return nil, refused("--server and --context exclude each other; give one")
	}
	env := func(names ...string) string {
		for _, n := range names {
			if v := a.env(n); v != "" {
				return v
			}
		}
		return ""
	}
	if f.context != "" {
		return a.natsContext(f.context, f)
	}
	if url := cmp.Or(f.server, env("WEFT_SERVER", "NATS_URL")); url != "" {
		t := &target{
			url: url,
			auth: client.Auth{
				Token: env("WEFT_TOKEN", "NATS_TOKEN"), CredsFile: cmp.Or(f.creds, env("WEFT_CREDS", "NATS_CREDS")),
				User: env("NATS_USER"), Password: env("NATS_PASSWORD"), NKeyFile: env("NATS_NKEY"),
			},
			tls: client.TLS{CA: env("NATS_CA"), Cert: env("NATS_CERT"), Key: env("NATS_KEY")},
		}
		return t, a.ownToken(t)
	}
	if name := env("WEFT_CONTEXT", "NATS_CONTEXT"); name != "" {
		return a.natsContext(name, f)
	}
	name, err := a.selectedContext()
	if err != nil {
		return nil, err
	}
	if name != "" {
		return a.natsContext(name, f)
	}
	t, err := a.running()
	if t != nil && f.creds != "" {
		return nil, refused("--creds is for a server that you name with --server or a context; your running server is used with its own token")
	}
	return t, err
}

// running is the user's own weft up, if there is one.
func (a *app) running() (*target, error) {
	s, err := runfile.Current(a.sys.RuntimeDir)
	switch {
	case err == nil:
		return &target{url: s.URL, auth: client.Auth{Token: s.Token}}, nil
	case errors.Is(err, runfile.ErrNone), errors.Is(err, runfile.ErrStale):
		return nil, nil
	}
	return nil, wire.Errorf(wire.CodePermissionDenied, "the note of your running server cannot be used: %v", err)
}

// ownToken adds the token of a server that the user runs, if t names it and
// nothing else says who the user is. The state's URL is used then, not t's: a
// name may lead elsewhere.
func (a *app) ownToken(t *target) error {
	if t.auth != (client.Auth{}) {
		return nil
	}
	s, err := runfile.Find(a.sys.RuntimeDir, t.url)
	switch {
	case err == nil:
		t.url, t.auth.Token = s.URL, s.Token
	case errors.Is(err, runfile.ErrInsecure):
		return wire.Errorf(wire.CodePermissionDenied, "the note of your running server cannot be used: %v", err)
	}
	return nil
}

// options is how the client connects to t.
func (a *app) options(t *target, f connFlags, log zerolog.Logger) client.Options {
	return client.Options{
		URL: t.url, Auth: t.auth, TLS: t.tls, Tenant: a.tenant(f), Name: "weft", Log: log,
	}
}

func (a *app) tenant(f connFlags) string {
	return cmp.Or(f.tenant, a.env("WEFT_TENANT"), client.DefaultTenant)
}

func errNoServer() error {
	return refused("no server is named and none of yours is running; give --server or --context, set NATS_URL, or run weft up in another terminal")
}

// connect is for the commands that need a server that is there.
func (a *app) connect(ctx context.Context, f connFlags) (*client.Client, error) {
	log, err := a.logger(zerolog.Disabled)
	if err != nil {
		return nil, err
	}
	t, err := a.target(f)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, errNoServer()
	}
	return client.Connect(ctx, a.options(t, f, log))
}

// withClient runs f with a connection. INT, TERM and HUP end what f waits for.
func (a *app) withClient(ctx context.Context, flags connFlags, f func(context.Context, *client.Client) error) error {
	ctx, stop := a.interruptible(ctx)
	defer stop()
	c, err := a.connect(ctx, flags)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer c.Close()
	return interrupted(ctx, f(ctx, c))
}

// env is a variable of the environment, "" if it is not set.
func (a *app) env(name string) string {
	v, _ := a.sys.LookupEnv(name)
	return v
}
