package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/embedded"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

// run serves until ctx is done.
func run(ctx context.Context, f flags, stderr io.Writer) error {
	log, err := f.logger(stderr)
	if err != nil {
		return err
	}
	if f.lostAfter < coordinator.MinWorkerLostAfter {
		return wire.Errorf(wire.CodeInvalidArgument, "--worker-lost-after is %s; it is at least %s, which it takes to suspect and ask a worker", f.lostAfter, coordinator.MinWorkerLostAfter)
	}
	if !f.embed {
		o, err := f.nats()
		if err != nil {
			return err
		}
		return serve(ctx, f, o, o.URL, log, func() error { return nil })
	}
	if f.server != "" {
		return wire.Errorf(wire.CodeInvalidArgument, "--embed and --server exclude each other")
	}
	return embed(ctx, f, log)
}

// embed serves with a NATS server in this process.
func embed(ctx context.Context, f flags, log zerolog.Logger) error {
	dir, err := storeDir(f.storeDir)
	if err != nil {
		return err
	}
	srv, err := embedded.Start(ctx, embedded.Options{
		Listen: strings.Replace(f.listen, ":-1", ":0", 1), StoreDir: dir,
		Token: cmp.Or(f.token, os.Getenv("NATS_TOKEN")), Log: log.With().Str("part", "nats").Logger(),
	})
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	var left *runfile.File
	defer func() {
		if left == nil {
			return
		}
		if err := left.Remove(); err != nil {
			log.Warn().Err(err).Msg("the state file stays behind")
		}
	}()
	o := natsbus.Options{InProcess: srv.InProcess(), Auth: natsbus.Auth{Token: srv.Token()}}
	return serve(ctx, f, o, srv.ClientURL(), log, func() (err error) {
		left, err = runfile.Write(runfile.DefaultDir(), runfile.State{URL: srv.ClientURL(), Token: srv.Token()})
		return err
	})
}

// serve runs the coordinator; ready is called once when it answers.
func serve(ctx context.Context, f flags, o natsbus.Options, url string, log zerolog.Logger, ready func() error) error {
	cfg := f.config(log)
	cfg.NATS = o
	c, err := coordinator.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-c.Ready():
	}
	if err := ready(); err != nil {
		cancel(err)
		<-ended
		return err
	}
	// Without a level, so that no --log-level hides it.
	log.Log().Str("url", withoutUser(url)).Strs("tenants", f.tenants).Msg("ready")
	return <-ended
}

// withoutUser is a list of server URLs without the credentials that one may hold.
func withoutUser(list string) string {
	urls := strings.Split(list, ",")
	for i, s := range urls {
		_, host, ok := strings.Cut(s, "@")
		if scheme, _, has := strings.Cut(s, "://"); ok && has {
			host = scheme + "://" + host
		}
		if ok {
			urls[i] = host
		}
	}
	return strings.Join(urls, ",")
}

// storeDir is dir, or weft/store in the user's state directory.
func storeDir(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", wire.Errorf(wire.CodeInvalidArgument, "no home directory; give --store-dir")
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "weft", "store"), nil
}
