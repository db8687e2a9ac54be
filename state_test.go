package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sources calls visit with each file of what a server is made of, and its folder.
func sources(t *testing.T, visit func(dir string, f *ast.File)) {
	t.Helper()
	for _, root := range []string{"app", "coord", "web"} {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "coordtest":
				return fs.SkipDir
			case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err == nil {
				visit(path.Dir(filepath.ToSlash(name)), f)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shared are the types that goroutines share.
var shared = regexp.MustCompile(`^(\*?(sync|atomic)\.|chan )`)

// TestStateIsDocumented holds docs/state.md to the types that are made to be shared within a
// process, in both directions.
func TestStateIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "state.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented, there []string
	for _, name := range regexp.MustCompile("`((?:app|coord|web)[a-z/]*\\.\\w+)`").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, name[1])
	}
	sources(t, func(dir string, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && slices.ContainsFunc(s.Fields.List, func(field *ast.Field) bool {
				return shared.MatchString(types.ExprString(field.Type))
			}) {
				there = append(there, dir+"."+spec.Name.Name)
			}
			return true
		})
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					for _, e := range append(s.(*ast.ValueSpec).Values, s.(*ast.ValueSpec).Type) {
						if e != nil && regexp.MustCompile(`^(&?(sync|atomic)\.|make\((map|chan))`).MatchString(types.ExprString(e)) {
							t.Errorf("%s has a variable that changes, %s", dir, s.(*ast.ValueSpec).Names[0].Name)
						}
					}
				}
			}
		}
	})
	for _, name := range there {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/state.md must say of %s what it keeps, why that is right with several replicas, its bound, and what is lost", name)
		}
	}
	for i, name := range documented {
		if !slices.Contains(there, name) || slices.Contains(documented[:i], name) {
			t.Errorf("docs/state.md names %s, which is not shared, or is named twice", name)
		}
	}
}

// timersOf says for each function that waits for a time to which background job it belongs. The
// others serve a call, or the end of the process, and end with it.
var timersOf = map[string]string{
	"app.Server.offerSetup":              "setup.offer",
	"app/health.Health.Run":              "health.probe",
	"app/hub.Hub.watch":                  "hub.watch",
	"app/jobs.Registry.do":               "jobs.lead", // or any job that has its turn
	"app/jobs.Registry.lead":             "jobs.lead",
	"app/jobs.rest":                      "jobs.lead", // or any job that has its turn
	"app/presence.Service.announcements": "presence.announce",
	"app/presence.Service.heartbeats":    "presence.heartbeat",
	"app/presence.Service.rounds":        "presence.sweep",
	"coord/internal/await.Hub.Run":       "store.calls",
	"coord/keyring.Ring.follow":          "keys.load",
	"coord/leader.Term.extend":           "jobs.lead",
	"coord/leader.rest":                  "jobs.lead",
	"coord/pg.doorbell.run":              "store.doorbell",
	"coord/pg.listener.run":              "store.listen",
	"coord/pg.reader.follow":             "store.events",
	"coord/pg.reader.run":                "store.events",
	"coord/pg.session.run":               "store.listen",
	"coord/sqlite.backend.watch":         "store.listen",
	"coord/worker.Worker.arm":            "worker.leases",
	"coord/worker.Worker.claimLoop":      "worker.claim",
	"coord/worker.Worker.heartbeats":     "worker.leases",

	"app.Server.stop":                   "",
	"app/auth.hasher.turn":              "",
	"app/doctor.Check.run":              "",
	"app/health.Health.Ready":           "",
	"app/hub.eventStream.serve":         "",
	"app/hub.pauseUntil":                "",
	"app/tasks.pause":                   "",
	"coord.again":                       "",
	"coord.breaker.arm":                 "",
	"coord.doing.settle":                "",
	"coord.doing.underLease":            "",
	"coord/httpreceipt.middleware.once": "",
	"coord/internal/batch.Batcher.fly":  "",
	"coord/memory.calls.Wait":           "",
	"coord/sqlite.persist":              "",
	"coord/sqlite.untilFree":            "",
	"coord/worker.Worker.Run":           "",
	"coord/worker.Worker.cutOff":        "",
	"coord/worker.Worker.write":         "",
}

// TestTimersBelongToJobs finds background work that is in no registry.
func TestTimersBelongToJobs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "jobs.md"))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	sources(t, func(dir string, f *ast.File) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && timer.MatchString(types.ExprString(call.Fun)) {
					there[dir+"."+nameOf(fn)] = true
				}
				return true
			})
		}
	})
	for name := range there {
		if job, known := timersOf[name]; !known || job != "" && !strings.Contains(string(text), "| `"+job+"` |") {
			t.Errorf("%s waits for a time: add it to timersOf, and to package app/jobs if it is background work (%q)", name, job)
		}
	}
	for name := range timersOf {
		if !there[name] {
			t.Errorf("timersOf names %s, which waits for no time", name)
		}
	}
}

var timer = regexp.MustCompile(`^time\.(NewTicker|NewTimer|AfterFunc|After|Tick|Sleep)$`)

// nameOf is the name of a function, with its receiver's type.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	receiver, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*"), "[")
	return receiver + "." + fn.Name.Name
}
