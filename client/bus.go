package client

import (
	"context"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/natsbus"
	"github.com/weft-fabric/weft/internal/subjects"
)

// bus is what a Client needs of NATS.
type bus interface {
	// Request returns the body of the answer; the errors are typed.
	Request(ctx context.Context, subject string, data []byte) ([]byte, error)
	// RequestMany hands over every answer until next returns false.
	RequestMany(ctx context.Context, subject string, data []byte, next func(body []byte, header func(string) string) bool) error
	// Open makes this process's end of a channel.
	Open(ch subjects.Channel) (port, error)
	// Up reports whether the connection is up now.
	Up() bool
	Close()
}

// port is a bus's end of one channel. Its Link still sends after Close.
type port interface {
	duplex.Link
	Bind(duplex.Handler)
	Close()
}

// natsBus is the bus over NATS.
type natsBus struct {
	*natsbus.Conn
	mux *natsbus.Mux
}

func dial(ctx context.Context, o natsbus.Options) (bus, error) {
	conn, err := natsbus.Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	mux, err := natsbus.NewClientMux(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &natsBus{Conn: conn, mux: mux}, nil
}

func (b *natsBus) RequestMany(ctx context.Context, subject string, data []byte, next func([]byte, func(string) string) bool) error {
	return b.Conn.RequestMany(ctx, subject, data, func(m natsbus.Msg) bool { return next(m.Data, m.Header) })
}

func (b *natsBus) Open(ch subjects.Channel) (port, error) {
	p, err := b.mux.Open(ch)
	if err != nil {
		return nil, err // a nil *Port must not become a port
	}
	return p, nil
}

func (b *natsBus) Close() {
	b.mux.Close()
	b.Conn.Close()
}

// nowhere is the port of a channel that is only read from the log.
type nowhere struct{}

func (nowhere) Store(uint64, []byte) error { return nil }
func (nowhere) Control([]byte) error       { return nil }
func (nowhere) Bind(duplex.Handler)        {}
func (nowhere) Close()                     {}
