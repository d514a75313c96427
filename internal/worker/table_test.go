package worker

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/internal/wire"
)

func TestEpochsOfFailedBindsAreBounded(t *testing.T) {
	tb := newTable(Config{Slots: 4, Limits: Limits{}.withDefaults()})
	tb.epochs.keep = 10
	for i := range 1000 {
		h, _, _, err := tb.bind(wire.BindOrder{OrderHead: wire.OrderHead{
			Tenant: "default", Lease: fmt.Sprint("l", i), Epoch: wire.Epoch{Incarnation: "x", N: 1},
		}})
		if err != nil {
			t.Fatal(err)
		}
		tb.drop(h) // as when its sandbox could not be made
	}
	if n := len(tb.epochs.leases); n > 10 {
		t.Errorf("%d epochs are remembered; want at most 10", n)
	}
}

// A release under the newer epoch that a coordinator raised for it can be asked
// for again after the teardown failed.
func TestReleaseAtANewerEpochCanBeRetried(t *testing.T) {
	tb := newTable(Config{Slots: 4, Limits: Limits{}.withDefaults()})
	head := wire.OrderHead{Tenant: "default", Lease: "l", Epoch: wire.Epoch{Incarnation: "x", N: 1}}
	if _, _, _, err := tb.bind(wire.BindOrder{OrderHead: head}); err != nil {
		t.Fatal(err)
	}
	head.Epoch.N = 2
	for range 2 {
		if h, _, err := tb.release(wire.ReleaseOrder{OrderHead: head}); h == nil || err != nil {
			t.Errorf("release: %v, %v", h, err)
		}
	}
	head.Epoch.N = 1
	if _, _, err := tb.release(wire.ReleaseOrder{OrderHead: head}); err != nil {
		t.Errorf("the release of the lease's own epoch while it ends: %v", err)
	}
}
