package runfile

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

// The ways in which there is no state to use; errors.Is tells them apart.
var (
	ErrNone     = errors.New("no server of yours left a state file")
	ErrStale    = errors.New("the server that wrote the state file is gone")
	ErrInsecure = errors.New("the state file is not safe to use")
	ErrInvalid  = errors.New("the state file is damaged")
)

// maxSize bounds a state file, in bytes.
const maxSize = 4096

// State is the content of one file. Write fills in all but URL and Token.
type State struct {
	URL     string    `json:"url"`   // without the token
	Token   string    `json:"token"` // "" if the server asks for none
	PID     int       `json:"pid"`
	Started uint64    `json:"started"` // the process's start, in clock ticks since boot
	Boot    string    `json:"boot"`
	Written time.Time `json:"written"`
}

// String leaves out the token.
func (s State) String() string { return fmt.Sprintf("%s (process %d)", s.URL, s.PID) }

// GoString leaves it out too.
func (s State) GoString() string { return s.String() }

func parse(b []byte) (State, error) {
	var s State
	if err := wire.DecodeStrict(b, maxSize, &s); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.check(); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return s, nil
}

func (s State) check() error {
	if _, err := addressOf(s.URL); err != nil {
		return err
	}
	if s.PID <= 0 {
		return errors.New("process id is not positive")
	}
	if i := strings.IndexFunc(s.Token, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
		return errors.New("token holds a character that is not printable ASCII")
	}
	return nil
}

// address is what two spellings of one server's URL have in common.
type address struct {
	host string
	port uint16
}

// addressOf reads nats://host:port. Port and scheme may be missing, as they may
// for nats.go; a list of servers or a URL with a user is no address.
func addressOf(raw string) (address, error) {
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return address{}, errors.New("not a server URL") // err would repeat the input
	}
	if u.Scheme != "nats" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return address{}, errors.New("not a server URL like nats://host:port")
	}
	port := uint64(4222)
	if p := u.Port(); p != "" {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			return address{}, errors.New("port of the server URL is not a number from 1 to 65535")
		}
	}
	host := strings.ToLower(u.Hostname())
	if host == "localhost" || host == "0.0.0.0" {
		host = "127.0.0.1"
	}
	return address{host: host, port: uint16(port)}, nil
}
