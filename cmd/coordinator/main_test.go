package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// clean keeps the user's own settings out of a test.
func clean(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	for _, v := range []string{"NATS_URL", "NATS_TOKEN", "NATS_CREDS", "NATS_USER", "NATS_PASSWORD", "NATS_NKEY", "NATS_CA", "NATS_CERT", "NATS_KEY"} {
		t.Setenv(v, "")
	}
}

func parse(t *testing.T, args ...string) flags {
	t.Helper()
	var f flags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.bind(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs a coordinator and returns its URL once it is ready; stop ends it
// and returns what it logged.
func start(t *testing.T, args ...string) (url string, stop func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, parse(t, args...), in)
		_ = in.Close()
		done <- err
	}()
	var mu sync.Mutex
	var logged strings.Builder
	ready := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(ready)
		for s := bufio.NewScanner(out); s.Scan(); {
			mu.Lock()
			logged.WriteString(s.Text() + "\n")
			mu.Unlock()
			var line struct{ Message, URL string }
			if json.Unmarshal(s.Bytes(), &line) == nil && line.Message == "ready" {
				ready <- line.URL
			}
		}
	}()
	url, ok := <-ready
	if !ok {
		t.Fatalf("not ready: %v", <-done)
	}
	stop = sync.OnceValue(func() string {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		<-read
		mu.Lock()
		defer mu.Unlock()
		return logged.String()
	})
	t.Cleanup(func() { stop() })
	return url, stop
}

func ask(t *testing.T, o natsbus.Options) error {
	t.Helper()
	c, err := natsbus.Connect(t.Context(), o)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Request(t.Context(), subjects.API("default", subjects.APIInfo), []byte(`{}`))
	return err
}

func TestEmbedLeavesURLAndTokenForTheUser(t *testing.T) {
	clean(t)
	url, stop := start(t, "--embed", "--listen", "127.0.0.1:0", "--store-dir", filepath.Join(t.TempDir(), "store"), "--log-bytes", "67108864", "--log-level", "error")
	s, err := runfile.Current(runfile.DefaultDir())
	if err != nil || s.URL != url || s.Token == "" {
		t.Fatalf("state: %+v %v", s, err)
	}
	if err := ask(t, natsbus.Options{URL: s.URL, Auth: natsbus.Auth{Token: s.Token}}); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, natsbus.Options{URL: s.URL}); wire.CodeOf(err) != wire.CodeUnauthenticated {
		t.Fatalf("without the token: %v", err)
	}
	// A second coordinator of the same user finds the token by the URL.
	_, stopSecond := start(t, "--server", url, "--name", "second")
	second := stopSecond()
	first := stop()
	if strings.Contains(first+second, s.Token) {
		t.Fatal("the token is in the log")
	}
	if _, err := runfile.Current(runfile.DefaultDir()); !errors.Is(err, runfile.ErrNone) {
		t.Fatalf("the state file stays behind: %v", err)
	}
}

func TestS004_TokenOfTheCommandLine(t *testing.T) {
	clean(t)
	t.Setenv("NATS_TOKEN", "from-the-environment")
	url, _ := start(t, "--embed", "--listen", "127.0.0.1:-1", "--store-dir", filepath.Join(t.TempDir(), "store"), "--log-bytes", "67108864")
	if err := ask(t, natsbus.Options{URL: url, Auth: natsbus.Auth{Token: "from-the-environment"}}); err != nil {
		t.Fatal(err)
	}
}

func TestBadFlags(t *testing.T) {
	clean(t)
	for _, args := range [][]string{
		{}, {"--embed", "--server", "nats://127.0.0.1:1"}, {"--embed", "--log-level", "loud"}, {"--embed", "--log-format", "xml"},
		{"--server", "nats://127.0.0.1:1", "--tenant", "A B"},
	} {
		if err := run(t.Context(), parse(t, args...), io.Discard); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("%q: %v", args, err)
		}
	}
}
