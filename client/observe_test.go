package client_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
)

func observe(t testing.TB, c *client.Client, id string) *client.Observer {
	t.Helper()
	o, err := c.Observe(t.Context(), "", id)
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	t.Cleanup(o.Close)
	return o
}

func TestObserve_ReadsAlong(t *testing.T) {
	s := stack(t, fabric.Options{})
	owner, c := connect(t, s, client.Options{}), connect(t, s, client.Options{})
	ch := open(t, acquire(t, owner), piped("sh", "-c", "cat; echo oops >&2; exit 5"))
	writes(t, ch, "before\n")
	reads(t, ch, "before\n")
	o := observe(t, c, ch.ID())
	writes(t, ch, "after\n")
	_ = ch.CloseWrite()
	var out, errs strings.Builder
	for {
		e, err := o.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil || e.Missed != 0 {
			t.Fatalf("%+v, %v", e, err)
		}
		if e.Stderr {
			errs.Write(e.Data)
		} else {
			out.Write(e.Data)
		}
	}
	if out.String() != "after\n" || errs.String() != "oops\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
	if got, err := o.Wait(t.Context()); got.String() != "exited(5)" || err != nil {
		t.Errorf("Wait: %v, %v", got, err)
	}
	if rest, err := io.ReadAll(ch); string(rest) != "after\n" || err != nil {
		t.Errorf("the owner read %q, %v", rest, err)
	}
	_, _ = io.Copy(io.Discard, ch.Stderr())
	ends(t, ch, "exited(5)")
	recorded(t, c, ch.ID())
	if _, err := c.Observe(t.Context(), "", ch.ID()); client.CodeOf(err) != client.CodeChannelEnded {
		t.Errorf("observing an ended channel: %v", err)
	}
	o.Close()
}

// The observer's reader is stopped while 100 MB flow (a tenth by default).
func TestC035_StuckObserverChangesNothing(t *testing.T) {
	size := int64(scaled(10e6, 100e6))
	s := stack(t, fabric.Options{})
	owner, c := connect(t, s, client.Options{}), connect(t, s, client.Options{})
	l := acquire(t, owner)
	flow := func(watched bool) (took time.Duration, seen, missed int64) {
		// It begins when the owner says so, so that an observer is there first.
		ch := open(t, l, piped("sh", "-c", "read -r x; head -c "+itoa(size)+" /dev/zero"))
		var o *client.Observer
		if watched {
			o = observe(t, c, ch.ID())
		}
		start := time.Now()
		writes(t, ch, "go\n")
		n, err := io.Copy(io.Discard, ch)
		took = time.Since(start)
		if n != size || err != nil {
			t.Errorf("the owner read %d bytes, %v", n, err)
		}
		_ = ch.CloseWrite()
		ends(t, ch, "exited(0)")
		if o == nil {
			return took, 0, 0
		}
		if out, err := o.Wait(t.Context()); out.String() != "exited(0)" || err != nil {
			t.Errorf("the observer's Wait: %v, %v", out, err)
		}
		for {
			e, err := o.Next(t.Context())
			if err != nil {
				break
			}
			seen += int64(len(e.Data))
			missed += e.Missed
		}
		return took, seen, missed
	}
	best := 100.0
	for range 3 {
		quiet, _, _ := flow(false)
		watched, seen, missed := flow(true)
		best = min(best, watched.Seconds()/quiet.Seconds())
		t.Logf("%v alone, %v observed; the observer saw %d bytes and missed %d", quiet, watched, seen, missed)
		if seen+missed != size || missed == 0 {
			t.Errorf("seen %d and missed %d of %d", seen, missed, size)
		}
	}
	// A machine with two cores runs the observer's copies on the owner's.
	if best > 2 {
		t.Errorf("the owner needed %.2f times as long with an observer", best)
	}
	t.Logf("best ratio %.2f", best)
}

func TestObserver_CloseAndClientClose(t *testing.T) {
	s := stack(t, fabric.Options{})
	owner, c := connect(t, s, client.Options{}), connect(t, s, client.Options{})
	ch := open(t, acquire(t, owner), piped("cat"))
	o, left := observe(t, c, ch.ID()), observe(t, c, ch.ID())
	o.Close()
	o.Close()
	if _, err := o.Next(t.Context()); client.CodeOf(err) != client.CodeChannelEnded {
		t.Errorf("Next after Close: %v", err)
	}
	c.Close()
	if out, err := left.Wait(t.Context()); out.Kind != client.Unknown || err == nil {
		t.Errorf("Wait after Close of the client: %v, %v", out, err)
	}
	var out bytes.Buffer
	writes(t, ch, "x")
	_ = ch.CloseWrite()
	_, _ = io.Copy(&out, ch)
	ends(t, ch, "exited(0)")
}
