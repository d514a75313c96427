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
