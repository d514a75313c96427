package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// errStore ends a wait for credit: what the command writes is to be stored.
var errStore = errors.New("worker: nobody grants credit")

// audience is whether a channel's client is there, and what the pumps do about
// it. While it is away, or once the command is gone, a pump without credit does
// not wait for more but stores what is in its pipe. Lock order: a duplex.End's,
// then mu.
type audience struct {
	spills bool // set once: output may be stored while the client is away

	mu        sync.Mutex
	said      time.Time // when the client said that it detaches; zero: it did not
	away      bool
	exited    bool
	impatient [4]func() // by stream: ends its pump's wait for credit
}

// watch calls f, once, as soon as a pump without credit is to store.
func (a *audience) watch(st wire.Stream, f func()) {
	a.mu.Lock()
	now := a.storing()
	if !now {
		a.impatient[st] = f
	}
	a.mu.Unlock()
	if now {
		f()
	}
}

func (a *audience) storing() bool { return a.exited || a.away && a.spills }

// change changes a under mu and tells the pumps that are to store now.
func (a *audience) change(f func()) {
	a.mu.Lock()
	f()
	var tell [4]func()
	if a.storing() {
		tell, a.impatient = a.impatient, tell
	}
	a.mu.Unlock()
	for _, f := range tell {
		if f != nil {
			f()
		}
	}
}

// leave says that the client has said it detaches: its silence counts from now.
func (a *audience) leave(now time.Time) { a.change(func() { a.said, a.away = now, true }) }

// back says that a client has attached.
func (a *audience) back() { a.change(func() { a.said, a.away = time.Time{}, false }) }

// seen says whether the client keeps up its keepalives. One that has said that it
// detaches is away until somebody attaches.
func (a *audience) seen(there bool) { a.change(func() { a.away = !there || !a.said.IsZero() }) }

// exit says that the command is gone: what is left of its output is bounded.
func (a *audience) exit() { a.change(func() { a.exited = true }) }

// isAway reports whether the client is away, and since when if it said so.
func (a *audience) isAway() (away bool, said time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.away, a.said
}
