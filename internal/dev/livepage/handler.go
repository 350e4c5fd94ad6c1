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

//go:embed page
var files embed.FS

// contentPolicy lets the page load its own files and call its own origin, and nothing else. If the name of a tenant
// contained markup, a script in it could not run or call another host, and the page could not be framed.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

type asset struct {
	contentType, tag string
	body             []byte
}

// load reads the files of the page, by their names below its address.
func load() map[string]asset {
	assets := make(map[string]asset)
	for _, file := range []string{"index.html", "page.js", "page.css", "common.js", "icon.svg"} {
		body, err := files.ReadFile("page/" + file)
		if err != nil {
			panic(err) // the files are embedded in the program
		}
		sum := sha256.Sum256(body)
		assets[strings.TrimPrefix(file, "index.html")] = asset{contentTypes[path.Ext(file)],
			`"` + hex.EncodeToString(sum[:12]) + `"`, body}
	}
	return assets
}

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// Handler serves the page and its data. The path at which it is mounted, such as /_sluice/, must already be stripped
// from requests. It answers GET and HEAD. status is called once for each request of data.json, and must be safe for
// concurrent use.
func Handler(r *Recorder, status func() Status) http.Handler {
	assets := load()
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
			status := status()
			writeData(w, r.data(&status))
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

// withSlash returns the address of the page, relative to a request whose path lacks the last slash, and "" for a
// request whose path has it. Without the slash, the relative links of the page would lead to the folder above.
func withSlash(req *http.Request) string {
	u, err := url.ParseRequestURI(req.RequestURI)
	if err != nil || u.Path == "" || strings.HasSuffix(u.Path, "/") {
		return ""
	}
	return "./" + url.PathEscape(path.Base(u.Path)) + "/"
}

func writeData(w http.ResponseWriter, data Data) {
	body, err := json.Marshal(data) // escapes <, > and &: harmless even if a browser is made to read it as markup
	if err != nil {
		http.Error(w, "the data cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body) // fails only if the client is gone
}
