package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/embedded"
	"github.com/weft-fabric/weft/internal/wire"
)

const loopback = "127.0.0.1:0"

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	s, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func TestS004_NoTokenNoEntry(t *testing.T) {
	s := start(t, embedded.Options{Listen: loopback})
	if len(s.Token()) < 26 {
		t.Fatalf("made token %q is too short", s.Token())
	}
	for name, opts := range map[string][]nats.Option{
		"without token":     nil,
		"wrong token":       {nats.Token(s.Token() + "x")},
		"user and password": {nats.UserInfo("weft", s.Token())},
	} {
		nc, err := nats.Connect(s.ClientURL(), opts...)
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v, want %v", name, err, nats.ErrAuthorization)
		}
		if err == nil {
			nc.Close()
		}
	}
	for name, opts := range map[string][]nats.Option{
		"tcp":        {nats.Token(s.Token())},
		"in-process": {nats.Token(s.Token()), nats.InProcessServer(s.InProcess())},
	} {
		nc, err := nats.Connect(s.ClientURL(), opts...)
		if err != nil {
			t.Errorf("%s with token: %v", name, err)
			continue
		}
		nc.Close()
	}
}

// By hand, because nats.go and the server block each other on the unbuffered
// pipe until the server's write deadline when the token is wrong.
func TestS004_InProcessNeedsTheTokenToo(t *testing.T) {
	s := start(t, embedded.Options{Token: "right"})
	for connect, want := range map[string]string{
		`{"verbose":true}`:                          "-ERR 'Authorization Violation'",
		`{"verbose":true,"auth_token":"wrong"}`:     "-ERR 'Authorization Violation'",
		`{"verbose":true,"auth_token":"right"}`:     "+OK",
		`{"verbose":true,"user":"","pass":"right"}`: "-ERR 'Authorization Violation'",
	} {
		conn, err := s.InProcess().InProcessConn()
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		info, err := r.ReadString('\n')
		if err != nil || !strings.Contains(info, `"auth_required":true`) {
			t.Fatalf("INFO %q, %v; want auth_required", info, err)
		}
		if _, err := fmt.Fprintf(conn, "CONNECT %s\r\n", connect); err != nil {
			t.Fatal(err)
		}
		got, err := r.ReadString('\n')
		if err != nil || strings.TrimSpace(got) != want {
			t.Errorf("CONNECT %s: %q, %v; want %q", connect, got, err, want)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoServersTwoTokens(t *testing.T) {
	a, b := start(t, embedded.Options{Listen: loopback}), start(t, embedded.Options{Listen: loopback})
	if a.Token() == b.Token() {
		t.Fatal("both servers made the same token")
	}
}

func TestNoPortAtAll(t *testing.T) {
	s := start(t, embedded.Options{})
	if s.ClientURL() != "" || s.Token() != "" {
		t.Fatalf("URL %q, token %q; want neither", s.ClientURL(), s.Token())
	}
	nc, err := nats.Connect("", nats.InProcessServer(s.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := listening(t); got != 0 {
		t.Fatalf("this process listens on %d TCP sockets, want 0", got)
	}
}

// listening counts the TCP sockets in state LISTEN that this process holds.
func listening(t *testing.T) int {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(fds) == 0 {
		t.Skip("SKIPPED: there is no /proc here to count sockets in")
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			own[to] = true
		}
	}
	n := 0
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own["socket:["+f[9]+"]"] {
				n++
			}
		}
	}
	return n
}

func TestListeningCountsSockets(t *testing.T) {
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := listening(t); got != 1 {
		t.Fatalf("counted %d listening sockets, want 1", got)
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := embedded.Options{Listen: l.Addr().String(), StoreDir: t.TempDir()}
	_, err = embedded.Start(t.Context(), o)
	wantConflict(t, err, "listen")
	// The refusal must not keep the store.
	o.Listen = loopback
	start(t, o)
}

func TestStoreInUse(t *testing.T) {
	dir := t.TempDir()
	s := start(t, embedded.Options{StoreDir: dir})
	_, err := embedded.Start(t.Context(), embedded.Options{StoreDir: dir})
	wantConflict(t, err, "store")
	s.Shutdown()
	s.Shutdown()
	start(t, embedded.Options{StoreDir: dir})
}

func wantConflict(t *testing.T, err error, what string) {
	t.Helper()
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || e.Code != wire.CodeConflict || e.Details["in_use"] != what {
		t.Fatalf("%#v, want CONFLICT with in_use=%s", err, what)
	}
}

func TestBadOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    embedded.Options
		code wire.Code
	}{
		"no store":          {embedded.Options{}, wire.CodeInvalidArgument},
		"store is a file":   {embedded.Options{StoreDir: file}, wire.CodeInvalidArgument},
		"no port":           {embedded.Options{StoreDir: dir, Listen: "127.0.0.1"}, wire.CodeInvalidArgument},
		"no host":           {embedded.Options{StoreDir: dir, Listen: ":4222"}, wire.CodeInvalidArgument},
		"port 65536":        {embedded.Options{StoreDir: dir, Listen: "127.0.0.1:65536"}, wire.CodeInvalidArgument},
		"foreign address":   {embedded.Options{StoreDir: dir, Listen: "192.0.2.1:0"}, wire.CodeInvalidArgument},
		"token with quote":  {embedded.Options{StoreDir: dir, Token: "a\"\n}"}, wire.CodeInvalidArgument},
		"token like bcrypt": {embedded.Options{StoreDir: dir, Token: "$2a$11$x"}, wire.CodeInvalidArgument},
		"token of 257":      {embedded.Options{StoreDir: dir, Token: strings.Repeat("a", 257)}, wire.CodeInvalidArgument},
		"store too big":     {embedded.Options{StoreDir: dir, MaxFileStore: 1 << 60}, wire.CodeQuotaExceeded},
		"store too small":   {embedded.Options{StoreDir: dir, MaxFileStore: 1 << 20}, wire.CodeQuotaExceeded},
	} {
		s, err := embedded.Start(t.Context(), c.o)
		if wire.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		if err == nil {
			s.Shutdown()
		}
	}
	start(t, embedded.Options{StoreDir: dir, Token: strings.Repeat("a", 256)})
}

func TestEnvironmentHasNoSay(t *testing.T) {
	t.Setenv("WEFT_LISTEN", "0.0.0.0:1")
	t.Setenv("WEFT_TOKEN", "stolen")
	s := start(t, embedded.Options{Listen: loopback})
	nc, err := nats.Connect(s.ClientURL(), nats.Token(s.Token()))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

// The same file also runs a separate nats-server, which has the environment only.
func TestShippedFileAlone(t *testing.T) {
	const file = "../../deploy/nats.conf"
	t.Setenv("WEFT_LISTEN", "127.0.0.2:4333")
	t.Setenv("WEFT_STORE", "/srv/weft")
	t.Setenv("WEFT_TOKEN", "'12e5'")
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if o.Host != "127.0.0.2" || o.Port != 4333 || o.StoreDir != "/srv/weft" || o.Authorization != "12e5" {
		t.Errorf("listen %s:%d, store %s, token %s", o.Host, o.Port, o.StoreDir, o.Authorization)
	}
	if !o.JetStream || !o.SyncAlways || o.HTTPPort != 0 {
		t.Errorf("jetstream %v, sync always %v, monitoring port %d", o.JetStream, o.SyncAlways, o.HTTPPort)
	}
	if err := os.Unsetenv("WEFT_TOKEN"); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ProcessConfigFile(file); err == nil {
		t.Error("the file is accepted without a token")
	}
}

func TestCancelledStartFreesStore(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := embedded.Start(ctx, embedded.Options{StoreDir: dir})
	if wire.CodeOf(err) != wire.CodeDeadlineExceeded {
		t.Fatalf("%v, want %s", err, wire.CodeDeadlineExceeded)
	}
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := embedded.Start(t.Context(), embedded.Options{StoreDir: dir})
		if err == nil {
			s.Shutdown()
			return
		}
		select {
		case <-deadline:
			t.Fatalf("the store is still held: %v", err)
		case <-tick.C:
		}
	}
}

func TestLimitsOfTheShippedFile(t *testing.T) {
	s := start(t, embedded.Options{Listen: loopback, MaxFileStore: 100 << 20})
	nc, err := nats.Connect(s.ClientURL(), nats.Token(s.Token()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.MaxPayload(); got != 1<<20 {
		t.Errorf("max payload %d, want %d", got, 1<<20)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "S", MaxBytes: 101 << 20}
	if _, err := js.CreateStream(t.Context(), config); err == nil {
		t.Error("a stream larger than the file store was made")
	}
	config.MaxBytes = 99 << 20
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Errorf("a stream that fits: %v", err)
	}
}

func TestLogsKeepTheToken(t *testing.T) {
	var out bytes.Buffer
	const token = "do-not-print-me"
	log := zerolog.New(zerolog.SyncWriter(&out))
	s, err := embedded.Start(t.Context(), embedded.Options{Listen: loopback, StoreDir: t.TempDir(), Token: token, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect(s.ClientURL(), nats.Token("wrong")); err == nil {
		nc.Close()
	}
	s.Shutdown()
	if !strings.Contains(out.String(), `"level":"warn"`) || !strings.Contains(out.String(), `"level":"debug"`) {
		t.Errorf("want the refusal at warn and notices at debug, got:\n%s", out.String())
	}
	if strings.Contains(out.String(), token) {
		t.Error("the log shows the token")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
