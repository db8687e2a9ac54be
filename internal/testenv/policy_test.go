package testenv

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// skipsAllowed lists files, from the root of the repository, that may skip tests. It is
// empty on purpose: what a test needs is set up by the test, or the test fails.
var skipsAllowed = map[string]bool{}

func TestNoTestSkips(t *testing.T) {
	root := repository(t)
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil || skipsAllowed[filepath.ToSlash(name)] {
			return err
		}
		files++
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found, err := skips(name, source)
		for _, at := range found {
			t.Errorf("%s: a test may not be skipped: set up what it needs, or let it fail", at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 5 {
		t.Fatalf("looked at %d files only: is %s the repository?", files, root)
	}
}

func TestSkipsAreFound(t *testing.T) {
	source := `package x
import ("testing"; tt "testing"; "pgregory.net/rapid")
func a(t *testing.T) { t.Skip("no"); func() { t.SkipNow() }() }
func b(tb testing.TB) { if testing.Short() { tb.Skipf("%d", 1) } }
func c(b *tt.B) { b.Skip() }
func d(t *testing.T) { t.Run("", func(s *testing.T) { s.Skip() }) }
func e(t *testing.T) { rapid.Check(t, func(t *rapid.T) { t.Skip("another value") }) }
func f(iter interface{ Skip() }) { iter.Skip() }
type g struct { testing.TB }
func h(t *testing.T) { f := t.Skip; f() }
`
	found, err := skips("x.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	if want := 7; len(found) != want {
		t.Errorf("found %d, want %d: %v", len(found), want, found)
	}
}

// skips returns the places where a file skips a test or asks for the short mode. rapid's own
// T may skip: that only draws other values.
func skips(name string, source []byte) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	imports := map[string]bool{}
	for _, spec := range file.Imports {
		if spec.Path.Value != `"testing"` {
			continue
		}
		local := "testing"
		if spec.Name != nil {
			local = spec.Name.Name
		}
		imports[local] = true
	}
	var found []string
	var visit func(node ast.Node, tests map[string]bool)
	visit = func(node ast.Node, tests map[string]bool) {
		ast.Inspect(node, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Body != nil {
					visit(n.Body, withParameters(n.Type, tests, imports))
				}
				return false
			case *ast.FuncLit:
				visit(n.Body, withParameters(n.Type, tests, imports))
				return false
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				skip := ok && tests[x.Name] && strings.HasPrefix(n.Sel.Name, "Skip") && n.Sel.Name != "Skipped"
				short := ok && imports[x.Name] && n.Sel.Name == "Short"
				if skip || short {
					found = append(found, fmt.Sprintf("%s: %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name))
				}
			}
			return true
		})
	}
	visit(file, nil)
	return found, nil
}

// withParameters adds a function's parameters of a type of package testing to the names that
// stand for a test, and takes those of other types away.
func withParameters(f *ast.FuncType, outer, imports map[string]bool) map[string]bool {
	names := map[string]bool{}
	for name := range outer {
		names[name] = true
	}
	for _, field := range f.Params.List {
		kind := field.Type
		if star, ok := kind.(*ast.StarExpr); ok {
			kind = star.X
		}
		selector, ok := kind.(*ast.SelectorExpr)
		if ok {
			pkg, isIdent := selector.X.(*ast.Ident)
			ok = isIdent && imports[pkg.Name]
		}
		for _, name := range field.Names {
			names[name.Name] = ok
		}
	}
	return names
}

// repository returns the root folder of the repository.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/tandemhq/tandem\n") {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod of the repository above this folder")
		}
		dir = parent
	}
}
