package main

import (
	"cmp"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

// flags are the command line.
type flags struct {
	embed                   bool
	listen, storeDir, token string
	server, creds           string
	tenants, disabled       []string
	name                    string
	lostAfter               time.Duration
	logBytes                int64
	replicas                int
	logLevel, logFormat     string
}

func (f *flags) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&f.embed, "embed", false, "start a NATS server in this process")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:4222", "with --embed: address of the server; port 0 for any free one")
	fs.StringVar(&f.storeDir, "store-dir", "", "with --embed: directory of its store (default: weft/store in the user's state directory)")
	fs.StringVar(&f.token, "token", "", "token of the server; with --embed the one to ask for (default: NATS_TOKEN, with --embed a new one). Other users see a command line; prefer the variable")
	fs.StringVarP(&f.server, "server", "s", "", "URL of the NATS server (default: NATS_URL)")
	fs.StringVar(&f.creds, "creds", "", "credentials file (default: NATS_CREDS)")
	fs.StringArrayVar(&f.tenants, "tenant", []string{"default"}, "tenant to serve; may be repeated")
	fs.StringArrayVar(&f.disabled, "disable-plugin", nil, "plugin whose leases get no duplex channels; may be repeated")
	fs.StringVar(&f.name, "name", "", "name of this coordinator in logs and answers (default: the host's name)")
	fs.DurationVar(&f.lostAfter, "worker-lost-after", time.Minute, "silence after which what was on a worker is written lost; at least 7s")
	fs.Int64Var(&f.logBytes, "log-bytes", 0, "size of each tenant's log stream in bytes (default: 1 GiB, less if the server has no room)")
	fs.IntVar(&f.replicas, "replicas", 1, "replicas of the store and the logs on a cluster")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "json", "json or console")
}

// logger makes the root logger of the process.
func (f flags) logger(w io.Writer) (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(f.logLevel)
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Logger{}, wire.Errorf(wire.CodeInvalidArgument, "--log-level is none of debug, info, warn, error")
	}
	switch f.logFormat {
	case "json":
	case "console":
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: true}
	default:
		return zerolog.Logger{}, wire.Errorf(wire.CodeInvalidArgument, "--log-format is neither json nor console")
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}

// config is the coordinator's configuration without its server.
func (f flags) config(log zerolog.Logger) coordinator.Config {
	host, err := os.Hostname()
	if err != nil {
		host = "coordinator"
	}
	return coordinator.Config{
		Name: cmp.Or(f.name, host), Tenants: f.tenants, DisabledPlugins: f.disabled,
		WorkerLostAfter: f.lostAfter, Replicas: f.replicas, Log: log,
		Limits: coordinator.Limits{LogBytes: f.logBytes},
	}
}

// nats says how to reach a server that is there already.
func (f flags) nats() (natsbus.Options, error) {
	o := natsbus.Options{
		URL: cmp.Or(f.server, os.Getenv("NATS_URL")),
		Auth: natsbus.Auth{
			Token: cmp.Or(f.token, os.Getenv("NATS_TOKEN")), CredsFile: cmp.Or(f.creds, os.Getenv("NATS_CREDS")),
			User: os.Getenv("NATS_USER"), Password: os.Getenv("NATS_PASSWORD"), NKeyFile: os.Getenv("NATS_NKEY"),
		},
		TLS: natsbus.TLS{CA: os.Getenv("NATS_CA"), Cert: os.Getenv("NATS_CERT"), Key: os.Getenv("NATS_KEY")},
	}
	if o.URL == "" {
		return o, wire.Errorf(wire.CodeInvalidArgument, "no NATS server is named: give --server or NATS_URL, or --embed to start one here")
	}
	if o.Auth == (natsbus.Auth{}) {
		// The user's own server left its token for the user's own programs.
		if own, err := runfile.Find(runfile.DefaultDir(), o.URL); err == nil {
			o.URL, o.Auth.Token = own.URL, own.Token
		}
	}
	return o, nil
}
