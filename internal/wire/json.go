package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep a JSON body may nest.
const maxDepth = 16

// DecodeStrict reads one JSON object of at most max bytes into v and refuses
// what encoding/json lets pass: trailing data, a key given twice, null, an
// unknown field, invalid UTF-8, a lone surrogate, nesting beyond 16. Every
// refusal is an INVALID_ARGUMENT (PAYLOAD_TOO_LARGE for size) that names the
// rule and never repeats the input.
func DecodeStrict(data []byte, max int, v any) error {
	if len(data) > max {
		return Errorf(CodePayloadTooLarge, "the body is %d bytes; at most %d are taken", len(data), max)
	}
	if err := scan(data); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return jsonError(err)
	}
	return nil
}

// Encode writes v as JSON. The types of this package always encode.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("wire: a message of this package does not encode: " + err.Error())
	}
	return b
}

func badJSON(rule string) error {
	return Errorf(CodeInvalidArgument, "the body is not acceptable JSON: %s", rule)
}

func jsonError(err error) error {
	if rest, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, err := strconv.Unquote(rest); err == nil && len(name) <= 64 && envName(name) {
			return Errorf(CodeInvalidArgument, "the body has a field that this request does not: %q", name)
		}
		return badJSON("it has a field that this request does not, with a name that is none")
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return Errorf(CodeInvalidArgument, "field %q has a value of the wrong type or range", t.Field)
	}
	return badJSON("it is malformed or a value has the wrong type")
}

// scan walks the tokens once for the rules that Decode does not know.
func scan(data []byte) error {
	if !utf8.Valid(data) {
		return badJSON("it is not UTF-8")
	}
	if loneSurrogate(data) {
		return badJSON("it holds half of a surrogate pair")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	type level struct {
		keys  map[string]struct{} // nil in an array
		isKey bool
	}
	var stack []level
	first := true
	for {
		tok, err := dec.Token()
		if err == io.EOF && !first && len(stack) == 0 {
			return nil
		}
		if err != nil {
			return badJSON("it is malformed or cut off")
		}
		if first && tok != json.Delim('{') {
			return badJSON("it is not an object")
		}
		if !first && len(stack) == 0 {
			return badJSON("data follows the object")
		}
		first = false
		top := len(stack) - 1
		if top >= 0 && stack[top].keys != nil && stack[top].isKey {
			if d, ok := tok.(json.Delim); !ok || d != '}' {
				key, _ := tok.(string)
				if len(stack) == 1 {
					// encoding/json matches fields without regard to case, by Unicode
					// folding (ToLower alone leaves the long s); deeper objects may be
					// maps (env, labels), where case counts.
					key = strings.ToLower(strings.ToUpper(key))
				}
				if _, twice := stack[top].keys[key]; twice {
					return badJSON("a key stands twice in one object")
				}
				stack[top].keys[key] = struct{}{}
				stack[top].isKey = false
				continue
			}
		}
		switch tok {
		case nil:
			return badJSON("null is never a value here; leave the field out")
		case json.Delim('{'), json.Delim('['):
			if len(stack) == maxDepth {
				return badJSON("it nests deeper than 16")
			}
			l := level{}
			if tok == json.Delim('{') {
				l = level{keys: map[string]struct{}{}, isKey: true}
			}
			stack = append(stack, l)
			continue
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
			top--
		}
		if top >= 0 {
			stack[top].isKey = stack[top].keys != nil
		}
	}
}

// loneSurrogate reports a \uD800–\uDFFF escape without its other half, which
// encoding/json would replace in silence.
func loneSurrogate(data []byte) bool {
	for i := 0; i+1 < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		i++
		if data[i] != 'u' {
			continue
		}
		switch hi := hex4(data, i+1); {
		case hi >= 0xdc00 && hi <= 0xdfff:
			return true
		case hi >= 0xd800 && hi <= 0xdbff:
			if i+6 >= len(data) || data[i+5] != '\\' || data[i+6] != 'u' {
				return true
			}
			if lo := hex4(data, i+7); lo < 0xdc00 || lo > 0xdfff {
				return true
			}
			i += 10
		}
	}
	return false
}

func hex4(data []byte, i int) int {
	if i+4 > len(data) {
		return -1
	}
	v := 0
	for _, c := range data[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | int(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = v<<4 | int(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return v
}
