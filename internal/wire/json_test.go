package wire

import (
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// openBody is the JSON of an open whose field %s has been put in.
func openBody(more string) string {
	return `{"lease":"l","epoch":{"incarnation":"i","n":1},"channel":"7d444840-9dc0-41d1-b245-5ffdce74fad2",` +
		`"credit":{"stdout":1,"stderr":1,"frameLimit":1},"body":"e30="` + more + `}`
}

type badBody struct{ name, body string }

func badBodies() []badBody {
	deep := strings.Repeat("[", 100_000)
	return []badBody{
		{"nothing", ""},
		{"only spaces", "  \n"},
		{"an array", `[]`},
		{"a string", `"x"`},
		{"null", `null`},
		{"a number", `1`},
		{"cut off", `{"lease":"l"`},
		{"trailing data", openBody("") + `x`},
		{"a second object", openBody("") + `{}`},
		{"a trailing brace", openBody("") + `}`},
		{"a trailing NUL", openBody("") + "\x00"},
		{"a trailing comma", `{"lease":"l",}`},
		{"a comment", `{"lease":"l"/*x*/}`},
		{"a key twice", `{"lease":"l","lease":"m"}`},
		{"a key twice in another case", `{"lease":"l","LEASE":"m"}`},
		{"a key twice with a long s", `{"lease":"l","lea` + "\u017f" + `e":"m"}`},
		{"a key twice with a kelvin sign", `{"key":"l","` + "\u212a" + `ey":"m"}`},
		{"a key twice by an escape", `{"lease":"l","l\u0065ase":"m"}`},
		{"a nested key twice", `{"epoch":{"n":1,"n":2}}`},
		{"a key twice inside an array", `{"x":[{"n":1,"n":2}]}`},
		{"100,000 [", deep},
		{"100,000 [ in a field", `{"lease":` + deep},
		{"17 levels", `{"lease":` + strings.Repeat("[", 16) + strings.Repeat("]", 16) + `}`},
		{"the number 1e999", `{"epoch":{"n":1e999}}`},
		{"a negative count", `{"epoch":{"n":-1}}`},
		{"a fraction", `{"epoch":{"n":1.5}}`},
		{"a lone surrogate", `{"lease":"\ud800"}`},
		{"a lone low surrogate", `{"lease":"\udc00x"}`},
		{"two high surrogates", `{"lease":"\ud800\ud800"}`},
		{"a surrogate at the end", `{"lease":"\ud83d`},
		{"a surrogate in a key", `{"\ud800":1}`},
		{"invalid UTF-8", "{\"lease\":\"\xc3\x28\"}"},
		{"a raw control character", "{\"lease\":\"a\x01b\"}"},
		{"null for a required field", openBody("")[:len(openBody(""))-len(`,"body":"e30="}`)] + `,"body":null}`},
		{"null in an array", `{"x":[null]}`},
		{"an unknown field", openBody(`,"extra":1`)},
		{"an unknown nested field", `{"epoch":{"extra":1}}`},
		{"the wrong type", `{"lease":7}`},
		{"an id that is none", `{"channel":"zzz"}`},
		{"base64 that is none", `{"body":"***"}`},
	}
}

func TestS029_BadBodies(t *testing.T) {
	for _, c := range badBodies() {
		data := []byte(c.body)
		decode := func() error { var r OpenRequest; return DecodeStrict(data, MaxOpenBody, &r) }
		start := time.Now()
		err := decode()
		took := time.Since(start)
		if CodeOf(err) != CodeInvalidArgument {
			t.Errorf("%s: %v; want %s", c.name, err, CodeInvalidArgument)
			continue
		}
		bytes := allocated(decode)
		t.Logf("%-32s %8s %8d B  %s", c.name, took.Round(time.Microsecond), bytes, err)
		if took > 100*time.Millisecond { // ten times the bound, for busy machines
			t.Errorf("%s took %s; want 10ms", c.name, took)
		}
		if bytes > 1<<20 {
			t.Errorf("%s allocated %d bytes; want at most 1 MiB", c.name, bytes)
		}
	}
}

// allocated is how many bytes run allocates, the least of three runs, since
// other goroutines count too.
func allocated(run func() error) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = run() // the caller has looked at the error
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

func TestDecodeStrictTakes(t *testing.T) {
	for _, c := range []badBody{
		{"a whole open", openBody("")},
		{"spaces around it", " \n" + openBody("") + "\r\n\t "},
		{"a surrogate pair", `{"lease":"\ud83d\ude00"}`},
		{"an escaped backslash before ud800", `{"lease":"\\ud800"}`},
		{"an empty object", `{}`},
		{"one key in two objects", `{"epoch":{"n":1},"credit":{"stdout":1}}`},
	} {
		var r OpenRequest
		if err := DecodeStrict([]byte(c.body), MaxOpenBody, &r); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Case counts in maps: env may have both.
	var e Exec
	if err := DecodeStrict([]byte(`{"env":{"path":"a","PATH":"b"}}`), MaxExecBody, &e); err != nil || len(e.Env) != 2 {
		t.Errorf("two names that differ in case: %v, %v", e.Env, err)
	}
}

func TestDecodeStrictDepth(t *testing.T) {
	var v struct {
		X any `json:"x"`
	}
	nested := func(levels int) []byte { // the object around it is one of them
		return []byte(`{"x":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`)
	}
	if err := DecodeStrict(nested(16), MaxOpenBody, &v); err != nil {
		t.Errorf("16 levels: %v", err)
	}
	wantInvalid(t, "17 levels", DecodeStrict(nested(17), MaxOpenBody, &v), "deeper than 16")
}

func TestDecodeStrictSize(t *testing.T) {
	body := []byte(`{"lease":"` + strings.Repeat("x", 100) + `"}`)
	var r LeaseRequest
	if err := DecodeStrict(body, len(body), &r); err != nil {
		t.Errorf("a body of exactly the limit: %v", err)
	}
	err := DecodeStrict(body, len(body)-1, &r)
	if CodeOf(err) != CodePayloadTooLarge || !strings.Contains(err.Error(), fmt.Sprint(len(body)-1)) {
		t.Errorf("a byte more: %v; want %s with the limit", err, CodePayloadTooLarge)
	}
}

func TestMaxOpenBodyHoldsTheLargestExec(t *testing.T) {
	body := openBody("")
	largest := len(body) + base64.StdEncoding.EncodedLen(MaxExecBody)
	if largest > MaxOpenBody-1024 {
		t.Errorf("an open with an exec body of %d bytes is %d; MaxOpenBody is %d", MaxExecBody, largest, MaxOpenBody)
	}
}

// TestDecodeStrictNeverRepeatsInput: a refusal names a field at most, and only
// one that is spelt like a field.
func TestDecodeStrictNeverRepeatsInput(t *testing.T) {
	const secret = "hunter2"
	for _, c := range []badBody{
		{"a wrong value", `{"epoch":{"n":"` + secret + `"}}`},
		{"trailing data", `{}` + secret},
		{"a string that does not end", `{"lease":"` + secret},
		{"a channel that is none", `{"channel":"` + secret + `"}`},
		{"a literal that is none", `{"lease":` + secret + `}`},
		{"a repeated key", `{"` + secret + `":1,"` + secret + `":2}`},
		{"a number", `{"lease":4242424242}`},
		{"a field name with spaces", `{"` + secret + ` x":1}`},
		{"a field name with ESC", `{"` + secret + `\u001b[2J":1}`},
		{"a field name with a quote", `{"` + secret + `\"":1}`},
		{"a field name with U+202E", `{"` + secret + "\u202e" + `":1}`},
		{"a field name of 65 bytes", `{"` + strings.Repeat("a", 58) + secret + `":1}`},
		{"a map key", `{"env":{"` + secret + `":1}}`},
	} {
		var r struct {
			OpenRequest
			Env map[string]string `json:"env"`
		}
		err := DecodeStrict([]byte(c.body), MaxOpenBody, &r)
		if CodeOf(err) != CodeInvalidArgument {
			t.Errorf("%s: %v; want %s", c.name, err, CodeInvalidArgument)
			continue
		}
		if s := err.Error(); strings.Contains(s, secret) || strings.Contains(s, "4242") {
			t.Errorf("%s: the refusal repeats the input: %s", c.name, s)
		}
		checkPrintable(t, err)
	}
	var r OpenRequest
	if err := DecodeStrict([]byte(`{"colour":1}`), MaxOpenBody, &r); err == nil || !strings.Contains(err.Error(), `"colour"`) {
		t.Errorf("an unknown field is not named: %v", err)
	}
	if err := DecodeStrict([]byte(`{"epoch":{"n":"x"}}`), MaxOpenBody, &r); err == nil || !strings.Contains(err.Error(), `"epoch.n"`) {
		t.Errorf("a field of the wrong type is not named: %v", err)
	}
}

// checkPrintable wants an error text that is one line of printable ASCII.
func checkPrintable(t testing.TB, err error) {
	t.Helper()
	for i, r := range err.Error() {
		if r < ' ' || r > '~' {
			t.Errorf("the text of an error has %U at %d: %q", r, i, err.Error())
		}
	}
}
