package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/wire"
)

// report writes err for a person, on one line.
func report(w io.Writer, err error) {
	say(w, sentence(err))
}

// say writes one line of weft's own. What stands in it may come from elsewhere,
// so controls are escaped. A standard error that is gone is nobody's loss.
func say(w io.Writer, text string) {
	_, _ = fmt.Fprintf(w, "weft: %s\n", printable(text))
}

// sentence is the text of an error: that of the typed error in it, with its
// code in brackets to search for, and every one of several that were joined.
func sentence(err error) string {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		all := j.Unwrap()
		if err.Error() == errors.Join(all...).Error() {
			parts := make([]string, len(all))
			for i, e := range all {
				parts[i] = sentence(e)
			}
			return strings.Join(parts, "; ")
		}
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return fmt.Sprintf("%s [%s]", e.Message, e.Code)
	}
	return strings.TrimPrefix(err.Error(), "client: ")
}

// refused is a refusal of the command itself.
func refused(format string, args ...any) error {
	return wire.Errorf(wire.CodeInvalidArgument, format, args...)
}

// explain says how a command ended where its exit status does not say it all;
// "" if there is nothing to add.
func explain(name string, o client.Outcome) string {
	switch o.Kind {
	case client.Exited, client.Signaled:
		return ""
	case client.StartFailed:
		return explainStart(name, o.Reason)
	case client.TimedOut:
		return "the command was ended: its timeout has passed; give it longer with --timeout"
	case client.EndedByRequest:
		return "the command was ended on request"
	case client.ClientLost:
		return "the command was ended: the worker did not hear this client for too long"
	case client.LeaseExpired, client.LeaseReleased, client.LeaseLost:
		return fmt.Sprintf("the command was ended with its lease (%s); acquire a new one", o.Kind)
	case client.WorkerLost:
		return "the worker is lost; the command is over on record, and may run on there until the worker restarts; run it again when another worker is there"
	case client.WorkerDrained:
		return "the command was ended: its worker is stopping; run it again on another"
	case client.Revoked:
		return fmt.Sprintf("the command was ended: the right to it was withdrawn (%s)", o.Reason)
	case client.LimitExceeded:
		return fmt.Sprintf("the command was ended: it passed its limit of %s", o.Reason)
	case client.Stalled:
		return "the channel was given up: nothing could be stored for too long; look at the NATS server"
	case client.DataLost:
		return fmt.Sprintf("%d bytes of output are lost, from offset %d on", o.Bytes, o.Offset)
	}
	return "how the command ended is not known"
}

func explainStart(name, reason string) string {
	switch reason {
	case wire.StartNotFound:
		return fmt.Sprintf("%q was not started: there is no such command in the sandbox; check the name and PATH", name)
	case wire.StartNotExecutable:
		return fmt.Sprintf("%q was not started: it cannot be executed; check its permissions and its format", name)
	case wire.StartCwd:
		return "the command was not started: its working directory is missing or cannot be entered; check --cwd"
	}
	return fmt.Sprintf("%q was not started: the worker's machine refused; its log has the cause", name)
}
