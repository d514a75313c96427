package worker_test

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

func TestTmp(t *testing.T) {
	r := newRig(t)
	l := r.bind()
	m := r.run(l, sh("head -c 100000000 /dev/zero | tr '\\0' '\\n'; echo done >&2; exit 4"))
	m.line()
	m.end.Discard(wire.Stdout)
	for i := 0; i < 20; i++ {
		select {
		case <-m.end.Done():
			t.Log("done")
			return
		case <-time.After(time.Second):
		}
		t.Logf("%d: received %d counters %+v worker %+v", i, m.end.Received().Stdout, m.end.Counters(), r.w.Stats())
	}
}
