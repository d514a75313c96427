package duplex

import (
	"testing"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/wire"
)

type nowhere struct{}

func (nowhere) Store(uint64, []byte) error { return nil }
func (nowhere) Control([]byte) error       { return nil }

// What Room has promised is taken, also when an attach with less credit comes
// before WriteBuf brings it.
func TestAttachBetweenRoomAndWriteBuf(t *testing.T) {
	for _, gathered := range []int{0, 1000} {
		e := New(Config{Side: Worker, Channel: uuid.New(), Epoch: 1, Link: nowhere{}})
		defer e.Close()
		g := Grant{Attach: 1, Frames: 2}
		g.Credit[wire.Stdout] = DefaultWindow
		e.Start(g)
		for range 2 { // the second waits for the first to be stored
			if _, err := e.Write(t.Context(), wire.Stdout, make([]byte, 1+gathered)); err != nil {
				t.Fatal(err)
			}
		}
		n, err := e.Room(t.Context(), wire.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		before := e.send.streams[wire.Stdout].taken()
		if _, _, err := e.Attach(2, wire.Key{}, nil, wire.DownCredit{Stdout: 1, Stderr: 1, FrameLimit: 1}); err != nil {
			t.Fatal(err)
		}
		if err := e.WriteBuf(wire.Stdout, make([]byte, wire.HeaderSize+n)); err != nil {
			t.Fatal(err)
		}
		if got := e.send.streams[wire.Stdout].taken() - before; got != uint64(n) {
			t.Errorf("%d of the %d bytes that were promised are taken", got, n)
		}
	}
}
