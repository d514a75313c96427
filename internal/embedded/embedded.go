package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/deploy"
	"github.com/weft-fabric/weft/internal/wire"
)

// startLimit bounds the start of the server. It is long because the server reads
// back its whole store, without an index after a crash.
const startLimit = 2 * time.Minute

// Options of Start.
type Options struct {
	Listen       string // host:port, port 0 for any free one; "" opens no port at all
	StoreDir     string // required; made with mode 0700 if it is missing
	Token        string // letters, digits and -._~; "" makes one if Listen is set
	MaxFileStore int64  // bytes; 0 takes the smaller of 10 GiB and 80 % of the free disk
	Log          zerolog.Logger
}

// Server is a running server.
type Server struct {
	srv   *server.Server
	token string
	store *os.File // the held lock
}

// Start returns a server that takes connections. It fails with CONFLICT when
// the address or the store directory is in use (the detail "in_use" says which,
// "listen" or "store"), INVALID_ARGUMENT for options that cannot work,
// QUOTA_EXCEEDED when the disk has no room, DEADLINE_EXCEEDED when the server
// is not up in time and UNAVAILABLE for what else stops it. The caller owes a
// Shutdown.
func Start(ctx context.Context, o Options) (*Server, error) {
	opts, err := options(o)
	if err != nil {
		return nil, err
	}
	lock, err := lockStore(o.StoreDir)
	if err != nil {
		return nil, err
	}
	s := &Server{token: opts.Authorization, store: lock}
	if opts.JetStreamMaxStore, err = storeSize(o.StoreDir, o.MaxFileStore); err != nil {
		s.unlock()
		return nil, err
	}
	if err := checkFree(o.Listen); err != nil {
		s.unlock()
		return nil, err
	}
	if s.srv, err = server.NewServer(opts); err != nil {
		s.unlock()
		return nil, wire.Errorf(wire.CodeInvalidArgument, "the NATS server refuses its configuration: %v", err)
	}
	log := &bridge{log: o.Log}
	s.srv.SetLoggerV2(log, false, false, false)
	if err := s.run(ctx, log); err != nil {
		return nil, err
	}
	return s, nil
}

// options makes the server's options from the shipped file and o.
func options(o Options) (*server.Options, error) {
	if o.StoreDir == "" {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "a store directory is needed")
	}
	token := o.Token
	if token == "" && o.Listen != "" {
		token = rand.Text()
	}
	if err := checkToken(token); err != nil {
		return nil, err
	}
	opts := &server.Options{}
	// Values for the parser only: a definition before its use wins over the
	// environment, which has no say in an embedded server.
	const values = "WEFT_LISTEN: \"127.0.0.1:4222\"\nWEFT_STORE: \"unset\"\nWEFT_TOKEN: \"unset\"\n"
	if err := opts.ProcessConfigString(values + deploy.NATSConf); err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "the built-in server configuration does not parse: %v", err)
	}
	opts.Authorization = token
	opts.StoreDir = o.StoreDir
	opts.NoSigs = true
	opts.DontListen = o.Listen == ""
	if opts.DontListen {
		return opts, nil
	}
	host, port, err := splitListen(o.Listen)
	if err != nil {
		return nil, err
	}
	opts.Host, opts.Port = host, port
	if port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	return opts, nil
}

// splitListen wants a host too: an empty one means every interface, which
// nobody should get by leaving something out.
func splitListen(listen string) (string, int, error) {
	host, p, err := net.SplitHostPort(listen)
	if err == nil && host == "" {
		err = errors.New("no host; write 127.0.0.1:PORT, or 0.0.0.0:PORT for every interface")
	}
	if err != nil {
		return "", 0, wire.Errorf(wire.CodeInvalidArgument, "listen address %q: %v", listen, err)
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, wire.Errorf(wire.CodeInvalidArgument, "listen address %q: port is not a number from 0 to 65535", listen)
	}
	return host, int(port), nil
}

// checkToken refuses what the server would take for a bcrypt hash and what
// would need escaping in a URL or a file.
func checkToken(token string) error {
	if len(token) > 256 {
		return wire.Errorf(wire.CodeInvalidArgument, "the token has %d characters; at most 256", len(token))
	}
	for _, c := range token {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '.', c == '_', c == '~':
		default:
			return wire.Errorf(wire.CodeInvalidArgument, "the token may hold letters, digits and -._~ only")
		}
	}
	return nil
}

// checkFree finds a taken address before the server does, which tells it as
// text only.
func checkFree(listen string) error {
	if listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return wire.Errorf(wire.CodeConflict, "%s is already in use; stop what listens there or choose another address", listen).
			With("in_use", "listen")
	}
	if err != nil {
		return wire.Errorf(wire.CodeInvalidArgument, "cannot listen on %s: %v", listen, err)
	}
	if err := l.Close(); err != nil {
		return wire.Errorf(wire.CodeUnavailable, "cannot listen on %s: %v", listen, err)
	}
	return nil
}

// run starts the server and returns when it takes connections or is down again.
func (s *Server) run(ctx context.Context, log *bridge) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.srv.Start()
		if ctx.Err() != nil {
			s.Shutdown()
		}
	}()
	select {
	case <-started:
	case <-ctx.Done():
		// Reading a store back cannot be interrupted. The goroutine above stops
		// the server as soon as it is through and holds the store until then.
		return wire.Errorf(wire.CodeDeadlineExceeded, "the embedded NATS server did not start: %v", context.Cause(ctx))
	}
	if ctx.Err() == nil && log.fatal.Load() == nil && s.srv.ReadyForConnections(time.Second) {
		return nil
	}
	s.Shutdown()
	if why := log.fatal.Load(); why != nil {
		return wire.Errorf(wire.CodeUnavailable, "the embedded NATS server did not start: %s", *why)
	}
	if ctx.Err() != nil {
		return wire.Errorf(wire.CodeDeadlineExceeded, "the embedded NATS server did not start: %v", context.Cause(ctx))
	}
	return wire.Errorf(wire.CodeUnavailable, "the embedded NATS server does not take connections")
}

// ClientURL is where clients connect, without the token; "" if there is no port.
func (s *Server) ClientURL() string {
	if s.srv.Addr() == nil {
		return ""
	}
	return s.srv.ClientURL()
}

// InProcess makes connections that use no socket.
func (s *Server) InProcess() nats.InProcessConnProvider { return s.srv }

// Token is what a connection must present; "" if the server asks for none.
func (s *Server) Token() string { return s.token }

// Shutdown stops the server, cuts its connections, and returns when it is down
// and its store is free. Calling it again does nothing.
func (s *Server) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.unlock()
}

// lockStore takes the store directory for this process until unlock. The
// kernel drops the lock when the process dies.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "store directory: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "weft.lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInvalidArgument, "store directory: %v", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, wire.Errorf(wire.CodeConflict, "store directory %s is in use by another server; stop it or choose another directory", dir).
			With("in_use", "store")
	}
	return nil, wire.Errorf(wire.CodeUnavailable, "store directory %s: lock: %v", dir, err)
}

// unlock leaves the file where it is: removing it would let two servers lock
// two files of one name. A second close is harmless.
func (s *Server) unlock() { _ = s.store.Close() }
