package wire

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/subjects"
)

func protocolPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "PROTOCOL.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPageNamesEveryConstant: each pinned value stands on the protocol page, a
// string in code style or in an example, a number as its digits.
func TestPageNamesEveryConstant(t *testing.T) {
	page := protocolPage(t)
	numbers := map[string]bool{}
	for _, n := range regexp.MustCompile(`[0-9]+`).FindAllString(page, -1) {
		numbers[n] = true
	}
	for _, p := range pins() {
		switch v := reflect.ValueOf(p.want); v.Kind() {
		case reflect.String:
			if s := v.String(); !strings.Contains(page, "`"+s+"`") && !strings.Contains(page, "metadata."+s) {
				t.Errorf("%s: %q is not on the page", p.name, s)
			}
		case reflect.Int, reflect.Uint8:
			if strings.HasPrefix(p.name, "Frame") || strings.HasPrefix(p.name, "Control") {
				continue // TestPageTables
			}
			if s := fmt.Sprintf("%d", p.want); !numbers[s] {
				t.Errorf("%s: %s is not on the page", p.name, s)
			}
		}
	}
}

// TestPageTables: the rows of frame types and control kinds have the numbers and
// sizes of the code.
func TestPageTables(t *testing.T) {
	page := protocolPage(t)
	for _, row := range []string{
		"| 1 | STDIN |", "| 2 | STDOUT |", "| 3 | STDERR |", "| 4 | EOF |", "| 5 | EXIT |", "| 6 | RESET |",
		"| 1 | FRAME | both | 1 + a frame |",
		fmt.Sprintf("| %d | CREDIT | both | %d |", ControlCredit, StateSize),
		fmt.Sprintf("| %d | PROBE | both | %d |", ControlProbe, StateSize),
		fmt.Sprintf("| %d | STATE | both | %d |", ControlState, StateSize),
		fmt.Sprintf("| %d | REQUEST | both | %d + JSON, at most %d |", ControlRequest, requestHeader, MaxRequest),
		fmt.Sprintf("| %d | ANSWER | both | %d + JSON, at most %d |", ControlAnswer, requestHeader, MaxRequest),
		fmt.Sprintf("| %d | FENCED | down | %d |", ControlFenced, FencedSize),
		fmt.Sprintf("| %d | STDIN_CLOSED | down | %d |", ControlStdinClosed, StdinClosedSize),
		fmt.Sprintf("| %d | GONE | down | %d |", ControlGone, GoneSize),
		"| token | " + strconv.Itoa(subjects.MaxToken),
	} {
		if !strings.Contains(page, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	for _, key := range []Key{KeyUp(goldenSecret(), 1), KeyUp(goldenSecret(), 2), KeyDown(goldenSecret())} {
		if !strings.Contains(page, fmt.Sprintf("%x", key[:])) {
			t.Errorf("the page has not the test vector %x", key[:])
		}
	}
}

// TestPageNamesEveryVerb: each string constant of internal/subjects that is a
// verb or a kind of subject.
func TestPageNamesEveryVerb(t *testing.T) {
	page := protocolPage(t)
	words := 0
	for _, name := range []string{"subjects.go", "parse.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "subjects", name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			lit, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			word, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			words++
			if !strings.Contains(page, "`"+word+"`") && !strings.Contains(page, "weft.v1."+word+".") && !strings.Contains(page, "."+word+".<") &&
				word != subjects.Prefix {
				t.Errorf("%s = %q is not on the page", spec.Names[0], word)
			}
			return true
		})
	}
	if words < 40 {
		t.Fatalf("found only %d words; the search is broken", words)
	}
}

// TestPageExamples: every JSON body has an example on the page, and each one is
// taken by the strict decoder.
func TestPageExamples(t *testing.T) {
	shown := map[string]bool{}
	types := bodies()
	for _, m := range regexp.MustCompile("(?s)```json ([A-Za-z]+)\n(.*?)```").FindAllStringSubmatch(protocolPage(t), -1) {
		v, ok := types[m[1]]
		if !ok {
			t.Errorf("the page has an example of %s, which is no body", m[1])
			continue
		}
		shown[m[1]] = true
		if err := DecodeStrict([]byte(m[2]), MaxOpenBody, v); err != nil {
			t.Errorf("the example of %s is refused: %v", m[1], err)
		}
	}
	for name := range types {
		if !shown[name] {
			t.Errorf("the page has no example of %s", name)
		}
	}
	if err := types["Exec"].(*Exec).Check(); err != nil {
		t.Errorf("the example of Exec: %v", err)
	}
	open := types["OpenRequest"].(*OpenRequest)
	if _, err := DecodeExec(open.Body); err != nil || CheckLeaseID(open.Lease) != nil || CheckChannelID(open.Channel) != nil {
		t.Errorf("the example of OpenRequest: %v", err)
	}
	reply := types["OpenReply"].(*OpenReply)
	if up, down := goldenUp(), goldenDown(); string(reply.KeyUp) != string(up[:]) || string(reply.KeyDown) != string(down[:]) {
		t.Error("the keys in the example of OpenReply are not those of the test vectors")
	}
	order := types["OpenOrder"].(*OpenOrder)
	if hash := BodyHash([]byte("{}")); string(order.BodySHA256) != string(hash[:]) || string(order.Secret) != string(goldenSecret()) {
		t.Errorf("the secret or hash in the example of OpenOrder; the hash of {} is %x", hash)
	}
}
