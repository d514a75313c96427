package wire

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func goodExec() Exec { return Exec{Mode: ModeDuplex, Argv: []string{"cat"}} }

func TestExecTakes(t *testing.T) {
	many := make(map[string]string, MaxEnv)
	for i := range MaxEnv {
		many[fmt.Sprintf("V%d", i)] = ""
	}
	for name, change := range map[string]func(*Exec){
		"the least":               func(*Exec) {},
		"execute":                 func(e *Exec) { e.Mode = ModeExecute },
		"1,024 arguments":         func(e *Exec) { e.Argv = append(e.Argv, make([]string, MaxArgv-1)...) },
		"an argument of 128 KiB":  func(e *Exec) { e.Argv = append(e.Argv, strings.Repeat("x", MaxArg)) },
		"argv with an empty item": func(e *Exec) { e.Argv = append(e.Argv, "") },
		"argv of six odd items":   func(e *Exec) { e.Argv = append(e.Argv, "a b", "it's", "$(id)", "*", "\n", "") },
		"256 variables":           func(e *Exec) { e.Env = many },
		"a value of 128 KiB":      func(e *Exec) { e.Env = map[string]string{"A": strings.Repeat("x", MaxArg)} },
		"a name of 256 bytes":     func(e *Exec) { e.Env = map[string]string{strings.Repeat("A", 256): ""} },
		"odd names":               func(e *Exec) { e.Env = map[string]string{"_": "", "a9_Z": "", "_1": ""} },
		"a cwd of 4,096 bytes":    func(e *Exec) { e.Cwd = strings.Repeat("d", MaxCwd) },
		"stdin none":              func(e *Exec) { e.Stdin = StdinNone },
		"stdin pipe":              func(e *Exec) { e.Stdin = StdinPipe },
		"a terminal":              func(e *Exec) { e.Stdin, e.TTY = StdinPTY, &TTY{Cols: 80, Rows: 24, Term: "xterm"} },
		"stdin in the body": func(e *Exec) {
			e.Mode, e.Stdin, e.StdinData = ModeExecute, StdinPipe, []byte("x")
		},
		"the largest numbers": func(e *Exec) {
			e.TimeoutMS, e.GraceMS, e.MaxOutput, e.LifetimeMS = 1<<53, 1<<53, 1<<53, 1<<53
			e.OnDisconnect = &OnDisconnect{Policy: KillAfter, AfterMS: 1 << 53}
		},
		"keep": func(e *Exec) { e.OnDisconnect = &OnDisconnect{Policy: Keep} },
	} {
		e := goodExec()
		change(&e)
		if err := e.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExecRefuses(t *testing.T) {
	tooMany := make(map[string]string)
	for i := range MaxEnv + 1 {
		tooMany[fmt.Sprintf("V%d", i)] = ""
	}
	env := func(k, v string) func(*Exec) {
		return func(e *Exec) { e.Env = map[string]string{k: v} }
	}
	for _, c := range []struct {
		name, says string
		change     func(*Exec)
	}{
		{"no mode", "mode", func(e *Exec) { e.Mode = "" }},
		{"an unknown mode", "mode", func(e *Exec) { e.Mode = "batch" }},
		{"257 variables", "257 entries; at most 256", func(e *Exec) { e.Env = tooMany }},
		{"an empty name", "env has a name", env("", "v")},
		{"a name of 257 bytes", "env has a name", env(strings.Repeat("A", 257), "")},
		{"a name with =", "env has a name", env("A=B", "")},
		{"a name with NUL", "env has a name", env("A\x00", "")},
		{"a name that begins with a digit", "env has a name", env("1A", "")},
		{"a name with a hyphen", "env has a name", env("A-B", "")},
		{"a name that is not ASCII", "env has a name", env("Ä", "")},
		{"a value with NUL", "env A holds a NUL", env("A", "x\x00y")},
		{"a value of 128 KiB and one", "131072", env("A", strings.Repeat("x", MaxArg+1))},
		{"a cwd with NUL", "cwd", func(e *Exec) { e.Cwd = "a\x00b" }},
		{"a cwd of 4,097 bytes", "4096", func(e *Exec) { e.Cwd = strings.Repeat("d", MaxCwd+1) }},
		{"an unknown stdin", "stdin", func(e *Exec) { e.Stdin = "file" }},
		{"a size without a terminal", "tty needs", func(e *Exec) { e.TTY = &TTY{Cols: 80, Rows: 24} }},
		{"a size with a pipe", "tty needs", func(e *Exec) { e.Stdin, e.TTY = StdinPipe, &TTY{Cols: 80, Rows: 24} }},
		{"a terminal without a size", "cols and rows", func(e *Exec) { e.Stdin = StdinPTY }},
		{"a terminal of 0 columns", "cols and rows", func(e *Exec) { e.Stdin, e.TTY = StdinPTY, &TTY{Rows: 24} }},
		{"a terminal of 0 rows", "cols and rows", func(e *Exec) { e.Stdin, e.TTY = StdinPTY, &TTY{Cols: 80} }},
		{"a terminal in execute mode", "terminal", func(e *Exec) {
			e.Mode, e.Stdin, e.TTY = ModeExecute, StdinPTY, &TTY{Cols: 80, Rows: 24}
		}},
		{"stdin data on a duplex channel", "stdinData", func(e *Exec) { e.Stdin, e.StdinData = StdinPipe, []byte("x") }},
		{"stdin data without stdin", "stdinData", func(e *Exec) { e.Mode, e.StdinData = ModeExecute, []byte("x") }},
		{"a negative timeout", "timeoutMs", func(e *Exec) { e.TimeoutMS = -1 }},
		{"a negative grace", "graceMs", func(e *Exec) { e.GraceMS = -1 }},
		{"a negative output", "maxOutput", func(e *Exec) { e.MaxOutput = -1 }},
		{"a life beyond 2^53", "lifetimeMs", func(e *Exec) { e.LifetimeMS = 1<<53 + 1 }},
		{"an unknown policy", "onDisconnect.policy", func(e *Exec) { e.OnDisconnect = &OnDisconnect{} }},
		{"a negative policy time", "onDisconnect.afterMs", func(e *Exec) { e.OnDisconnect = &OnDisconnect{Policy: Keep, AfterMS: -1} }},
	} {
		e := goodExec()
		c.change(&e)
		wantInvalid(t, c.name, e.Check(), c.says)
	}
}

func wantInvalid(t *testing.T, name string, err error, says string) {
	t.Helper()
	if CodeOf(err) != CodeInvalidArgument || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want %s with %q", name, err, CodeInvalidArgument, says)
		return
	}
	checkPrintable(t, err)
}

func TestG001_ArgvIsNamed(t *testing.T) {
	for _, c := range []struct {
		body, says string
	}{
		{`{"mode":"duplex","argv":[]}`, "argv is empty"},
		{`{"mode":"duplex"}`, "argv is empty"},
		{`{"mode":"duplex","argv":[""]}`, "argv[0] is empty"},
		{`{"mode":"duplex","argv":["echo","a\u0000b"]}`, "argv[1] holds a NUL"},
		{`{"mode":"duplex","argv":["\u0000"]}`, "argv[0] holds a NUL"},
	} {
		e, err := DecodeExec([]byte(c.body))
		wantInvalid(t, c.body, err, c.says)
		if e != nil {
			t.Errorf("%s: refused and returned", c.body)
		}
	}
	e := goodExec()
	e.Argv = append(e.Argv, make([]string, MaxArgv)...)
	wantInvalid(t, "1,025 arguments", e.Check(), "1025 items; at most 1024")
}

func TestE029_ArgumentOf127And129KiB(t *testing.T) {
	e := goodExec()
	e.Argv = append(e.Argv, strings.Repeat("x", 127<<10))
	got, err := DecodeExec(Encode(e))
	if err != nil || got.Argv[1] != e.Argv[1] {
		t.Errorf("127 KiB: %v", err)
	}
	e.Argv[1] = strings.Repeat("x", 129<<10)
	_, err = DecodeExec(Encode(e))
	wantInvalid(t, "129 KiB", err, "argv[1] is 132096 bytes; one argument is at most 131072")
	e.Argv[1] = strings.Repeat("x", MaxArg+1)
	_, err = DecodeExec(Encode(e))
	wantInvalid(t, "128 KiB and one", err, "131073")
}

func TestE030_ArgvUntouched(t *testing.T) {
	e := goodExec()
	e.Argv = []string{"printargs", "a b", "it's", "$(id)", "*", "\n", "", "<&>", "\u2028"}
	got, err := DecodeExec(Encode(e))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(e.Argv, got.Argv); d != "" {
		t.Error(d)
	}
}

func TestExecBodySize(t *testing.T) {
	e := goodExec()
	for range 4 {
		e.Argv = append(e.Argv, strings.Repeat("x", MaxArg-256))
	}
	body := Encode(e)
	body = append(body, strings.Repeat(" ", MaxExecBody-len(body))...)
	if _, err := DecodeExec(body); err != nil {
		t.Errorf("a body of %d bytes: %v", len(body), err)
	}
	if _, err := DecodeExec(append(body, ' ')); CodeOf(err) != CodePayloadTooLarge {
		t.Errorf("a body of one byte more: %v; want %s", err, CodePayloadTooLarge)
	}
	if BodyHash(body) != sha256.Sum256(body) {
		t.Error("BodyHash is not SHA-256")
	}
}

func TestS009_Names(t *testing.T) {
	for _, good := range []string{"x", "build box 7", "prüfstand", "名前", strings.Repeat("x", 256)} {
		if err := CheckName("environment", good, 256); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "a\x00b", "a\x1b[2Jb", "a\u202eb", "a\u200bb", "a\u00a0b", "a\xc3\x28b", strings.Repeat("x", 257),
		"a\nb", "a\tb", "a\x7fb", "a\u2028b", "a\u3000b", "a\ufeffb", "a\u0085b", "\U000e0041", "a\xff",
	} {
		wantInvalid(t, fmt.Sprintf("%q", bad), CheckName("environment", bad, 256), "environment")
	}
}

// badTokens are the ids of S-008 and the long ones of S-010.
func badTokens() []string {
	return []string{
		"a.b", "*", ">", "a b", "\t", "a\tb", "a\r\nPUB x", "", "_INBOX", "$JS", "..", "-a", "a-", "A", "ä",
		"a\x00", "a_b", "a/b", strings.Repeat("a", 64), strings.Repeat("a", 5000),
	}
}

func TestS008_Ids(t *testing.T) {
	for _, bad := range badTokens() {
		name := fmt.Sprintf("%.20q", bad)
		wantInvalid(t, name, CheckToken("worker", bad), "worker")
		wantInvalid(t, name, CheckTenant(bad), "tenant")
		wantInvalid(t, name, CheckLeaseID(bad), "lease")
	}
}

func TestS010_LongIds(t *testing.T) {
	if err := CheckToken("worker", strings.Repeat("a", 63)); err != nil {
		t.Errorf("63 bytes: %v", err)
	}
	wantInvalid(t, "64 bytes", CheckToken("worker", strings.Repeat("a", 64)), "64 bytes")
	wantInvalid(t, "5,000 bytes", CheckToken("worker", strings.Repeat("a", 5000)), "5000 bytes")
}

func TestLeaseAndChannelIDs(t *testing.T) {
	v4 := "7d444840-9dc0-41d1-b245-5ffdce74fad2"
	v5 := uuid.NewSHA1(uuid.NameSpaceURL, []byte("x")).String()
	for _, good := range []string{v4, v5} {
		if err := CheckLeaseID(good); err != nil {
			t.Errorf("lease %s: %v", good, err)
		}
	}
	for _, bad := range []string{strings.ToUpper(v4), "{" + v4 + "}", "urn:uuid:" + v4, strings.ReplaceAll(v4, "-", ""), v4[:35], v4 + "0"} {
		wantInvalid(t, bad, CheckLeaseID(bad), "lease")
	}
	if err := CheckChannelID(uuid.MustParse(v4)); err != nil {
		t.Errorf("channel %s: %v", v4, err)
	}
	for _, bad := range []string{
		uuid.Nil.String(), v5, uuid.Max.String(),
		"7d444840-9dc0-11d1-b245-5ffdce74fad2", // version 1
		"7d444840-9dc0-41d1-0245-5ffdce74fad2", // another variant
	} {
		wantInvalid(t, bad, CheckChannelID(uuid.MustParse(bad)), "channel")
	}
}
