package worker_test

import (
	"bytes"
	"testing"

	"github.com/weft-fabric/weft/internal/wire"
)

func TestC001_CatEchoesEveryByte(t *testing.T) {
	r := newRig(t)
	m := r.run(r.bind(), piped("cat"))
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
		m.write(string([]byte{byte(i)}))
	}
	m.write(string(all))
	m.end.CloseStream(wire.Stdin)
	res := m.collect()
	if want := append(bytes.Clone(all), all...); !bytes.Equal(res.stdout, want) {
		t.Errorf("stdout is %d bytes, want the %d sent", len(res.stdout), len(want))
	}
	if len(res.stderr) != 0 {
		t.Errorf("stderr %q", res.stderr)
	}
	wantOutcome(t, res.exit.Outcome, "exited(0)")
	if want := (wire.Totals{Stdin: 512, Stdout: 512}); res.exit.Totals != want {
		t.Errorf("totals %+v, want %+v", res.exit.Totals, want)
	}
	if rec := m.record(); rec.Totals != res.exit.Totals || rec.Outcome.String() != res.exit.Outcome.String() {
		t.Errorf("on record %+v, the client was told %+v", rec, res.exit)
	}
}
