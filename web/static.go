package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"

	"github.com/julienschmidt/httprouter"
)

//go:embed static
var embedded embed.FS

// contentTypes does not depend on what the machine has installed.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".json": "application/json", ".webmanifest": "application/manifest+json", ".svg": "image/svg+xml",
	".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2", ".md": "text/plain; charset=utf-8",
	".txt": "text/plain; charset=utf-8",
}

// static serves the files of the page.
type static struct {
	files map[string]asset
}

type asset struct {
	content     []byte
	contentType string
	tag         string // ETag
}

func newStatic() (*static, error) {
	s := &static{files: make(map[string]asset)}
	root, err := fs.Sub(embedded, "static")
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		contentType := contentTypes[path.Ext(name)]
		if contentType == "" {
			contentType = "text/plain; charset=utf-8" // such as a LICENSE
		}
		sum := sha256.Sum256(content)
		s.files[name] = asset{content, contentType, `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the page's files: %w", err)
	}
	return s, nil
}

func (s *static) page(w http.ResponseWriter, r *http.Request) { s.serve(w, r, "index.html") }

func (s *static) file(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, httprouter.ParamsFromContext(r.Context()).ByName("path")[1:])
}

// serve lets browsers keep a file and ask each time whether it is still good, so
// that a new version is seen at once and an old one costs an empty answer.
func (s *static) serve(w http.ResponseWriter, r *http.Request, name string) {
	a, ok := s.files[name]
	if !ok {
		http.Error(w, "There is no such file.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", a.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.content))
}
