package livepage

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

//go:embed page/index.html page/page.css page/page.js page/icon.svg
var files embed.FS

// contentPolicy lets the page load its own files and talk to where it came from, and nothing else: whatever markup a
// tenant's name might smuggle in could not run, call home or be framed.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

type asset struct {
	contentType, tag string
	body             []byte
}

var assets = map[string]asset{
	"":         load("index.html", "text/html; charset=utf-8"),
	"page.css": load("page.css", "text/css; charset=utf-8"),
	"page.js":  load("page.js", "text/javascript; charset=utf-8"),
	"icon.svg": load("icon.svg", "image/svg+xml"),
}

func load(file, contentType string) asset {
	body, err := files.ReadFile("page/" + file)
	if err != nil {
		panic(err) // embedded above: the build has it, or there is no build
	}
	sum := sha256.Sum256(body)
	return asset{contentType, `"` + hex.EncodeToString(sum[:12]) + `"`, body}
}

// Handler serves the page and its data below the path it is mounted at (as /_sluice/, already stripped). It answers
// GET and HEAD; status is called once for each request of data.json and must be safe for concurrent use.
func Handler(r *Recorder, status func() Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are answered here", http.StatusMethodNotAllowed)
			return
		}
		file := strings.TrimPrefix(req.URL.Path, "/")
		switch a, ok := assets[file]; {
		case file == "data.json":
			s := status()
			writeData(w, r.data(&s))
		case !ok:
			h.Set("Cache-Control", "no-store")
			http.Error(w, "there is no such page", http.StatusNotFound)
		case file == "" && withSlash(req) != "":
			h.Set("Location", withSlash(req))
			w.WriteHeader(http.StatusMovedPermanently)
		default:
			h.Set("Content-Type", a.contentType)
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", a.tag)
			http.ServeContent(w, req, file, time.Time{}, bytes.NewReader(a.body))
		}
	})
}

// withSlash is where the page is, relative to a request for it that lacks the last slash; "" for one that has it. The
// page's own links are relative, so without the slash they would lead to the folder above.
func withSlash(req *http.Request) string {
	u, err := url.ParseRequestURI(req.RequestURI)
	if err != nil || u.Path == "" || strings.HasSuffix(u.Path, "/") {
		return ""
	}
	return "./" + url.PathEscape(path.Base(u.Path)) + "/"
}

func writeData(w http.ResponseWriter, d Data) {
	body, err := json.Marshal(d) // escapes <, > and &: harmless even where a browser is made to read it as markup
	if err != nil {
		http.Error(w, "the data cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body) // the client is gone where this fails; the next poll asks again
}
