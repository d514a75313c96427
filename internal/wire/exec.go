package wire

import (
	"crypto/sha256"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of a command (docs/PROTOCOL.md, "Limits").
const (
	MaxExecBody = 512 << 10
	MaxArgv     = 1024
	MaxArg      = 128 << 10
	MaxEnv      = 256
	MaxCwd      = 4096
	// MaxOpenBody bounds the JSON of an open or execute request: the exec body in
	// base64 and room for the rest.
	MaxOpenBody = MaxExecBody*4/3 + 8<<10
	// MaxControlBody bounds every other request.
	MaxControlBody = 64 << 10
	// DefaultOutputKept is how much of each stream Execute keeps, in bytes.
	DefaultOutputKept = 1 << 20
)

// Mode is how a channel is used.
type Mode string

// The modes: a duplex channel, or a one-shot execution over the same frames.
const (
	ModeDuplex  Mode = "duplex"
	ModeExecute Mode = "execute"
)

// StdinKind is what a command's standard input is.
type StdinKind string

// The kinds of stdin: /dev/null, a pipe, or a terminal.
const (
	StdinNone StdinKind = "none"
	StdinPipe StdinKind = "pipe"
	StdinPTY  StdinKind = "pty"
)

// DisconnectPolicy is what becomes of a command whose client is gone.
type DisconnectPolicy string

// The policies of on_disconnect.
const (
	KillAfter DisconnectPolicy = "kill_after"
	Keep      DisconnectPolicy = "keep"
)

// DefaultKillAfter is the grace for a client to come back.
const DefaultKillAfter = 30 * time.Second

// DefaultGrace is the time between TERM and KILL.
const DefaultGrace = 5 * time.Second

// OnDisconnect says what happens when the client is silent for three keepalives.
type OnDisconnect struct {
	Policy  DisconnectPolicy `json:"policy"`
	AfterMS int64            `json:"afterMs,omitempty"`
}

// TTY is the size a terminal starts with and its TERM.
type TTY struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
	Term string `json:"term,omitempty"`
}

// Exec is the body of an open: the command and how to run it. It crosses the
// coordinator as the bytes that the client sent, because the order to the
// worker carries their hash.
type Exec struct {
	Mode         Mode              `json:"mode"`
	Argv         []string          `json:"argv,omitempty"`
	Cwd          string            `json:"cwd,omitempty"` // relative to the sandbox root
	Env          map[string]string `json:"env,omitempty"`
	Stdin        StdinKind         `json:"stdin,omitempty"` // default none
	StdinData    []byte            `json:"stdinData,omitempty"`
	TTY          *TTY              `json:"tty,omitempty"`
	TimeoutMS    int64             `json:"timeoutMs,omitempty"` // 0: no deadline
	GraceMS      int64             `json:"graceMs,omitempty"`   // 0: DefaultGrace
	OnDisconnect *OnDisconnect     `json:"onDisconnect,omitempty"`
	MaxOutput    int64             `json:"maxOutput,omitempty"` // bytes of stdout and stderr in all; 0: no limit
	LifetimeMS   int64             `json:"lifetimeMs,omitempty"`
}

// BodyHash is the SHA-256 of an exec body as sent.
func BodyHash(body []byte) [32]byte { return sha256.Sum256(body) }

// DecodeExec reads and checks an exec body; see Check.
func DecodeExec(body []byte) (*Exec, error) {
	var e Exec
	if err := DecodeStrict(body, MaxExecBody, &e); err != nil {
		return nil, err
	}
	if err := e.Check(); err != nil {
		return nil, err
	}
	return &e, nil
}

// Check is gate check 1: every argument valid on its own. The error is
// INVALID_ARGUMENT and names the item.
func (e *Exec) Check() error {
	if e.Mode != ModeDuplex && e.Mode != ModeExecute {
		return invalid("mode is neither %q nor %q", ModeDuplex, ModeExecute)
	}
	if err := checkArgv(e.Argv); err != nil {
		return err
	}
	if len(e.Cwd) > MaxCwd || strings.ContainsRune(e.Cwd, 0) {
		return invalid("cwd holds a NUL byte or is longer than %d bytes", MaxCwd)
	}
	if err := checkEnv(e.Env); err != nil {
		return err
	}
	if err := e.checkStdin(); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"timeoutMs", e.TimeoutMS}, {"graceMs", e.GraceMS}, {"maxOutput", e.MaxOutput}, {"lifetimeMs", e.LifetimeMS}} {
		if n.value < 0 || n.value > 1<<53 {
			return invalid("%s is out of range", n.name)
		}
	}
	if d := e.OnDisconnect; d != nil {
		if d.Policy != KillAfter && d.Policy != Keep {
			return invalid("onDisconnect.policy is neither %q nor %q", KillAfter, Keep)
		}
		if d.AfterMS < 0 || d.AfterMS > 1<<53 {
			return invalid("onDisconnect.afterMs is out of range")
		}
	}
	return nil
}

func (e *Exec) checkStdin() error {
	switch e.Stdin {
	case "", StdinNone, StdinPipe:
		if e.TTY != nil {
			return invalid("tty needs stdin %q", StdinPTY)
		}
	case StdinPTY:
		if e.Mode == ModeExecute {
			return invalid("a one-shot execution has no terminal")
		}
		if e.TTY == nil || e.TTY.Cols == 0 || e.TTY.Rows == 0 {
			return invalid("stdin %q needs tty with cols and rows above 0", StdinPTY)
		}
	default:
		return invalid("stdin is none of %q, %q, %q", StdinNone, StdinPipe, StdinPTY)
	}
	if len(e.StdinData) > 0 && (e.Mode != ModeExecute || e.Stdin != StdinPipe) {
		return invalid("stdinData is for one-shot executions with stdin %q", StdinPipe)
	}
	return nil
}

func checkArgv(argv []string) error {
	if len(argv) == 0 {
		return invalid("argv is empty; give the command and its arguments")
	}
	if len(argv) > MaxArgv {
		return invalid("argv has %d items; at most %d are taken", len(argv), MaxArgv)
	}
	if argv[0] == "" {
		return invalid("argv[0] is empty; it names the command")
	}
	for i, a := range argv {
		if len(a) > MaxArg {
			return invalid("argv[%d] is %d bytes; one argument is at most %d", i, len(a), MaxArg)
		}
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("argv[%d] holds a NUL byte", i)
		}
	}
	return nil
}

func checkEnv(env map[string]string) error {
	if len(env) > MaxEnv {
		return invalid("env has %d entries; at most %d are taken", len(env), MaxEnv)
	}
	for k, v := range env {
		if k == "" || len(k) > 256 || !envName(k) {
			return invalid("env has a name that is not letters, digits and _, or begins with a digit")
		}
		if len(v) > MaxArg || strings.IndexByte(v, 0) >= 0 {
			return invalid("env %s holds a NUL byte or is longer than %d bytes", k, MaxArg)
		}
	}
	return nil
}

func envName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// CheckName checks a human-readable name (a label value, an environment):
// 1 to max bytes of printable UTF-8 without control, format or look-alike
// space characters. The error is INVALID_ARGUMENT and never repeats the bytes.
func CheckName(what, s string, max int) error {
	if s == "" || len(s) > max {
		return invalid("%s is empty or longer than %d bytes", what, max)
	}
	if !utf8.ValidString(s) {
		return invalid("%s is not UTF-8", what)
	}
	for _, r := range s {
		// Format characters (Cf) are not graphic.
		if r != ' ' && (!unicode.IsGraphic(r) || unicode.IsSpace(r)) {
			return invalid("%s holds a control, format or non-breaking character", what)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return Errorf(CodeInvalidArgument, format, args...)
}
