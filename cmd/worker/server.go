package main

import (
	"cmp"
	"errors"
	"os"
	"strings"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// server is the NATS server as the flags name it.
type server struct{ url, creds, token string }

// options finds the server and the credentials for it.
func (s server) options() (natsbus.Options, error) {
	o := natsbus.Options{
		URL: cmp.Or(s.url, os.Getenv("NATS_URL")),
		TLS: natsbus.TLS{CA: os.Getenv("NATS_CA"), Cert: os.Getenv("NATS_CERT"), Key: os.Getenv("NATS_KEY")},
	}
	switch {
	case s.creds != "":
		o.Auth.CredsFile = s.creds
	case s.token != "":
		o.Auth.Token = s.token
	default:
		o.Auth = natsbus.Auth{
			Token: os.Getenv("NATS_TOKEN"), User: os.Getenv("NATS_USER"), Password: os.Getenv("NATS_PASSWORD"),
			CredsFile: os.Getenv("NATS_CREDS"), NKeyFile: os.Getenv("NATS_NKEY"),
		}
	}
	if o.URL != "" && o.Auth != (natsbus.Auth{}) {
		return o, nil
	}
	return fromRunfile(o, runfile.DefaultDir())
}

// fromRunfile completes o from the state file of this user's coordinator.
func fromRunfile(o natsbus.Options, dir string) (natsbus.Options, error) {
	if o.URL != "" {
		// A server that is not this user's coordinator may ask for no credentials.
		if st, err := runfile.Find(dir, o.URL); err == nil {
			o.URL, o.Auth.Token = st.URL, st.Token
		} else if errors.Is(err, runfile.ErrInsecure) {
			return o, err
		}
		return o, nil
	}
	st, err := runfile.Current(dir)
	if errors.Is(err, runfile.ErrNone) || errors.Is(err, runfile.ErrStale) {
		return o, wire.Errorf(wire.CodeInvalidArgument,
			"no NATS server: give --server or NATS_URL, or start a coordinator with --embed")
	}
	if err != nil {
		return o, err
	}
	o.URL = st.URL
	if o.Auth == (natsbus.Auth{}) {
		o.Auth.Token = st.Token
	}
	return o, nil
}

func trimToken(b []byte) string {
	return strings.Trim(string(b[:min(len(b), subjects.MaxToken)]), "-")
}
