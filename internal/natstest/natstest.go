// Package natstest gives a test a NATS server of its own: the embedded server
// with the shipped configuration on a free loopback port and a store that goes
// with the test. It is imported by tests only.
package natstest

import (
	"errors"
	"net"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/internal/embedded"
)

// storeSize is small, so that a test machine with little disk is enough.
const storeSize = 2 << 30

// Server is one server of a test. Its methods belong to the test's goroutine,
// except InProcessConn, which a reconnecting connection calls from its own.
type Server struct {
	opts embedded.Options
	srv  atomic.Pointer[embedded.Server] // nil while stopped
}

// Option changes how Start makes the server.
type Option func(*embedded.Options)

// InProcessOnly opens no port: URL is "" and Connect uses no socket.
func InProcessOnly() Option { return func(o *embedded.Options) { o.Listen = "" } }

// WithToken sets the token instead of a made one.
func WithToken(token string) Option { return func(o *embedded.Options) { o.Token = token } }

// WithMaxFileStore limits the file store, in bytes.
func WithMaxFileStore(n int64) Option { return func(o *embedded.Options) { o.MaxFileStore = n } }

// WithLog sends the server's log there; by default it is dropped.
func WithLog(log zerolog.Logger) Option { return func(o *embedded.Options) { o.Log = log } }

// Start returns a running server that stops with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{opts: embedded.Options{
		Listen: "127.0.0.1:0", MaxFileStore: storeSize, Log: zerolog.Nop(),
	}}
	for _, o := range opts {
		o(&s.opts)
	}
	s.opts.StoreDir = t.TempDir()
	t.Cleanup(s.Kill) // after TempDir, so before its removal
	s.start(t)
	// A restart comes back under the same address and token.
	s.opts.Token = s.srv.Load().Token()
	if u := s.srv.Load().ClientURL(); u != "" {
		s.opts.Listen = hostOf(t, u)
	}
	return s
}

func hostOf(t testing.TB, clientURL string) string {
	t.Helper()
	u, err := url.Parse(clientURL)
	if err != nil {
		t.Fatalf("natstest: URL of the server: %v", err)
	}
	if _, _, err := net.SplitHostPort(u.Host); err != nil {
		t.Fatalf("natstest: URL of the server: %v", err)
	}
	return u.Host
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	srv, err := embedded.Start(t.Context(), s.opts)
	if err != nil {
		t.Fatalf("natstest: %v", err)
	}
	s.srv.Store(srv)
}

// URL is the server's address without the token; it stays the same over a Restart.
func (s *Server) URL() string {
	if s.opts.Listen == "" {
		return ""
	}
	return "nats://" + s.opts.Listen
}

// Token is what a connection must present; it stays the same over a Restart.
func (s *Server) Token() string { return s.opts.Token }

// InProcess makes connections without a socket, over a Restart too.
func (s *Server) InProcess() nats.InProcessConnProvider { return s }

// InProcessConn makes one; it fails while the server is down.
func (s *Server) InProcessConn() (net.Conn, error) {
	srv := s.srv.Load()
	if srv == nil {
		return nil, errors.New("natstest: the server is down")
	}
	return srv.InProcess().InProcessConn()
}

// Connect returns a connection that closes with the test. It reconnects for
// ever, every 20 ms; opts come after these defaults.
func (s *Server) Connect(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	all := []nats.Option{
		nats.Token(s.opts.Token), nats.MaxReconnects(-1),
		nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
	}
	if s.opts.Listen == "" {
		all = append(all, nats.InProcessServer(s.InProcess()))
	}
	nc, err := nats.Connect(s.URL(), append(all, opts...)...)
	if err != nil {
		t.Fatalf("natstest: connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Kill cuts every connection and returns when the server is down. Clients see
// what they see of a killed one; what it had acknowledged reaches the store all
// the same. Restart brings it back; the end of the test kills one that runs.
func (s *Server) Kill() {
	if srv := s.srv.Swap(nil); srv != nil {
		srv.Shutdown()
	}
}

// Restart stops the server if it runs and starts it again on the same port with
// the same token, with the store it had or with an empty one.
func (s *Server) Restart(t testing.TB, keepStore bool) {
	t.Helper()
	s.Kill()
	if !keepStore {
		if err := os.RemoveAll(s.opts.StoreDir); err != nil {
			t.Fatalf("natstest: empty the store: %v", err)
		}
	}
	s.start(t)
}
