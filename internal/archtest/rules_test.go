package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// A rule forbids some packages an import and says why.
type rule struct {
	what      string
	why       string
	forbids   func(importPath string) bool
	exempt    []string // packages, each with those below it
	only      []string // if set: the packages that it binds
	tests     bool     // binds _test.go files too
	reachable bool     // forbids what comes in through other packages of ours, too
}

const (
	natsGo     = "github.com/nats-io/nats.go"
	natsServer = "github.com/nats-io/nats-server"
)

// pure lists the packages that decide and remember but never act.
func pure() []string {
	return []string{
		"internal/subjects", "internal/wire", "internal/duplex", "internal/registry",
		"internal/lease", "internal/channel", "internal/gate",
	}
}

func importRules() []rule {
	return []rule{
		{
			what: "NATS or processes in a pure package", reachable: true,
			why:     "pure packages take time and messages as arguments, so that every state can be tested without a server",
			forbids: anyOf(natsGo, natsServer, "os/exec"), only: pure(),
		},
		{
			what:    "nats.go outside the adapters",
			why:     "everything else reaches NATS through internal/natsbus, where reconnects and limits are settled once",
			forbids: anyOf(natsGo),
			exempt:  []string{"internal/natsbus", "internal/coordinator", "internal/embedded", "internal/natstest", "bench"},
		},
		{
			what: "nats-server outside internal/embedded", tests: true,
			why:     "whoever imports it links a whole server; use internal/embedded, or internal/natstest in a test",
			forbids: anyOf(natsServer), exempt: []string{"internal/embedded"},
		},
		{
			what: "NATS in a driver", reachable: true,
			why:     "a sandbox starts and ends processes; the worker connects it to the fabric",
			forbids: anyOf(natsGo, natsServer), only: []string{"internal/sandbox"},
		},
		{
			what: "the server in the client library or the worker", reachable: true,
			why:     "a program that uses the client, and a worker, must not link a NATS server",
			forbids: anyOf(natsServer), only: []string{"client", "internal/worker", "cmd/worker"},
		},
		{
			what:    "the client library inside",
			why:     "the client is what agents see of weft; inside, only the CLI is such an agent",
			forbids: anyOf(module + "/client"),
			exempt:  []string{"client", "internal/cli", "bench", "integration", "examples"},
		},
		{
			what:    "a helper for tests in production code",
			why:     "packages named ...test hold fakes and servers for tests and are imported by _test.go files only",
			forbids: isTestHelper, exempt: []string{"internal/natstest"},
		},
	}
}

// anyOf matches the paths and what is below them.
func anyOf(roots ...string) func(string) bool {
	return func(p string) bool { return slices.ContainsFunc(roots, func(r string) bool { return below(p, r) }) }
}

func below(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func isTestHelper(p string) bool { return below(p, module) && strings.HasSuffix(p, "test") }

func (r rule) binds(s source) bool {
	in := func(root string) bool { return below(s.pkg, root) }
	if s.test && !r.tests || slices.ContainsFunc(r.exempt, in) {
		return false
	}
	// Helpers of a bound package's tests are no part of it.
	if r.only != nil && isTestHelper(module+"/"+s.pkg) {
		return false
	}
	return r.only == nil || slices.ContainsFunc(r.only, in)
}

// checkImports returns one line for each file and each import that a rule forbids.
func checkImports(files []source, rules []rule) []string {
	imports := map[string][]string{} // of our packages, tests apart
	for _, f := range files {
		if !f.test {
			imports[module+"/"+f.pkg] = append(imports[module+"/"+f.pkg], f.imports()...)
		}
	}
	var bad []string
	for _, r := range rules {
		for _, f := range files {
			if !r.binds(f) {
				continue
			}
			for _, i := range f.imports() {
				via := []string{i}
				if r.reachable {
					via = pathTo(imports, i, r.forbids, map[string]bool{})
				} else if !r.forbids(i) {
					via = nil
				}
				if via != nil {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s; %s", f.path, strings.Join(via, " -> "), r.what, r.why))
				}
			}
		}
	}
	return bad
}

// pathTo returns the imports that lead from p to a forbidden one, nil if none does.
func pathTo(imports map[string][]string, p string, forbids func(string) bool, seen map[string]bool) []string {
	if forbids(p) {
		return []string{p}
	}
	if seen[p] {
		return nil
	}
	seen[p] = true
	for _, next := range imports[p] {
		if rest := pathTo(imports, next, forbids, seen); rest != nil {
			return append([]string{p}, rest...)
		}
	}
	return nil
}

// checkGoroutines wants none in pure packages. The shell of internal/duplex,
// which runs the two state machines of a channel, is the exception.
func checkGoroutines(files []source) []string {
	var bad []string
	for _, f := range files {
		if f.test || f.pkg == "internal/duplex" || isTestHelper(module+"/"+f.pkg) ||
			!slices.ContainsFunc(pure(), func(root string) bool { return below(f.pkg, root) }) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				bad = append(bad, f.at(n.Pos())+" starts a goroutine; a pure package leaves that to its caller")
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" {
					bad = append(bad, f.at(n.Pos())+" starts a goroutine; a pure package leaves that to its caller")
				}
			}
			return true
		})
	}
	return bad
}

// checkDocs wants one doc comment per package, in one file.
func checkDocs(files []source) []string {
	docs, names := map[string][]string{}, map[string]string{}
	for _, f := range files {
		name := f.ast.Name.Name
		if f.test && strings.HasSuffix(name, "_test") && f.ast.Doc == nil {
			if names[f.pkg] == "" {
				names[f.pkg] = strings.TrimSuffix(name, "_test")
			}
			continue
		}
		names[f.pkg] = strings.TrimSuffix(name, "_test")
		if f.ast.Doc != nil && isPackageDoc(f.ast, names[f.pkg]) {
			docs[f.pkg] = append(docs[f.pkg], f.path)
		}
	}
	var bad []string
	for pkg, name := range names {
		switch n := len(docs[pkg]); {
		case n == 0:
			bad = append(bad, fmt.Sprintf("%s has no package doc; begin one with %q", pkg, docStart(name)))
		case n > 1:
			bad = append(bad, fmt.Sprintf("%s has %d package docs (%s); keep one", pkg, n, strings.Join(docs[pkg], ", ")))
		}
	}
	slices.Sort(bad)
	return bad
}

func docStart(name string) string {
	if name == "main" {
		return "// Command "
	}
	return "// Package " + name + " "
}

func isPackageDoc(f *ast.File, name string) bool {
	text := strings.Join(strings.Fields(f.Doc.Text()), " ")
	return strings.HasPrefix("// "+text, docStart(name)) && len(text) > len(docStart(name))+20
}

// checkSleeps finds time.Sleep in tests outside a synctest bubble, where a second
// is a second and never long enough on a busy machine.
func checkSleeps(files []source) []string {
	var bad []string
	for _, f := range files {
		if !f.test {
			continue
		}
		var bubbles []ast.Node
		var sleeps []token.Pos
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if isCall(call, "synctest", "Test") {
				bubbles = append(bubbles, call)
			}
			if isCall(call, "time", "Sleep") {
				sleeps = append(sleeps, call.Pos())
			}
			return true
		})
		for _, p := range sleeps {
			if !slices.ContainsFunc(bubbles, func(b ast.Node) bool { return b.Pos() <= p && p < b.End() }) {
				bad = append(bad, f.at(p)+" sleeps outside a synctest bubble; wait for the event instead")
			}
		}
	}
	return bad
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// checkInit finds func init, which works behind the back of whoever imports it.
func checkInit(files []source) []string {
	var bad []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				bad = append(bad, f.at(fn.Pos())+" has func init; do it in a constructor")
			}
		}
	}
	return bad
}
