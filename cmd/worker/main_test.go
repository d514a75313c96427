package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

func TestTokenOfHostName(t *testing.T) {
	for host, want := range map[string]string{
		"Build-7.example.org": "build-7", "a_b": "a-b", "-x-": "x", "é": "", "": "",
		strings.Repeat("h", 70): strings.Repeat("h", 63),
	} {
		if got := tokenOf(host); got != want {
			t.Errorf("%q makes %q, want %q", host, got, want)
		}
	}
}

func TestServerOfTheUsersCoordinator(t *testing.T) {
	for _, name := range []string{"NATS_URL", "NATS_TOKEN", "NATS_CREDS", "NATS_USER", "NATS_PASSWORD", "NATS_NKEY", "NATS_CA", "NATS_CERT", "NATS_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	_, err := server{}.options()
	if wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("without any server: %v", err)
	}
	f, err := runfile.Write(runfile.DefaultDir(), runfile.State{URL: "nats://127.0.0.1:4333", Token: "t0ken"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Remove() }()
	for name, c := range map[string]struct {
		s    server
		want natsbus.Options
	}{
		"found":          {server{}, natsbus.Options{URL: "nats://127.0.0.1:4333", Auth: natsbus.Auth{Token: "t0ken"}}},
		"named":          {server{url: "localhost:4333"}, natsbus.Options{URL: "nats://127.0.0.1:4333", Auth: natsbus.Auth{Token: "t0ken"}}},
		"another server": {server{url: "nats://127.0.0.1:4334"}, natsbus.Options{URL: "nats://127.0.0.1:4334"}},
		"own token":      {server{url: "nats://127.0.0.1:4333", token: "mine"}, natsbus.Options{URL: "nats://127.0.0.1:4333", Auth: natsbus.Auth{Token: "mine"}}},
	} {
		got, err := c.s.options()
		if err != nil || got.URL != c.want.URL || got.Auth != c.want.Auth {
			t.Errorf("%s: %+v at %s (%v), want %+v at %s", name, got.Auth, got.URL, err, c.want.Auth, c.want.URL)
		}
	}
	t.Setenv("NATS_URL", "nats://127.0.0.1:4335")
	t.Setenv("NATS_TOKEN", "env")
	if got, err := (server{}).options(); err != nil || got.URL != "nats://127.0.0.1:4335" || got.Auth.Token != "env" {
		t.Errorf("from the environment: %+v at %s (%v)", got.Auth, got.URL, err)
	}
}

func TestRefusedFlags(t *testing.T) {
	t.Setenv("NATS_URL", "nats://127.0.0.1:1")
	t.Setenv("NATS_TOKEN", "x")
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"an id that is none":           {"--id", "../x", "--insecure-orders"},
		"a driver that is none":        {"--id", "w", "--driver", "magic", "--insecure-orders"},
		"a level that is none":         {"--id", "w", "--log-level", "loud", "--insecure-orders"},
		"no way to check orders":       {"--id", "w"},
		"no slots":                     {"--id", "w", "--slots", "0", "--insecure-orders"},
		"a plugin that is none":        {"--id", "w", "--plugin", "a.b", "--insecure-orders"},
		"an argument that is not read": {"surplus"},
	} {
		cmd := command()
		cmd.SetArgs(append(args, "--state-dir", filepath.Join(dir, "state"), "--log-level", "error"))
		if name == "a level that is none" {
			cmd.SetArgs(append(args, "--state-dir", filepath.Join(dir, "state")))
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
