package worker

import "github.com/weft-fabric/weft/internal/wire"

// ending decides the one outcome of a channel: the first cause that comes wins.
// It is pure; whoever owns it says in which order things happened.
type ending struct {
	asked wire.Outcome // the first that somebody asked for; zero: none
	exit  wire.Outcome // of the process, once it is gone
	held  bool         // its pipes were held until the drain bound
}

// ask says that the channel is to end with o. It reports whether that is now
// its outcome: not if the process was gone, or something else was asked before.
func (e *ending) ask(o wire.Outcome) bool {
	if e.exit.Kind != "" || e.asked.Kind != "" {
		return false
	}
	e.asked = o
	return true
}

// gone says that the process is gone, and how.
func (e *ending) gone(exit wire.Outcome) {
	if e.exit.Kind == "" {
		e.exit = exit
	}
}

// outcome is what is decided so far, the zero value if nothing is. A command
// that was asked to end and exited by itself then has its code as a detail.
func (e *ending) outcome() wire.Outcome {
	o := e.exit
	if e.asked.Kind != "" {
		o = e.asked
		if e.exit.Kind == wire.Exited {
			o.Code = e.exit.Code
		}
	}
	if e.held && o.Kind != "" {
		o.Drain = wire.DrainHeld
	}
	return o
}
