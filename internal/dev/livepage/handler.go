package livepage

import (
	"cmp"
	"embed"
	"encoding/json"
	"net/http"
	"strings"
)

//go:embed page
var files embed.FS

// contentPolicy lets the page load its own files and call its own origin, and nothing else. If the name of a tenant
// contained markup, a script in it could not run or call another host, and the page could not be framed.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// contentTypes has the files of the page, by their names below its address; "" is index.html.
var contentTypes = map[string]string{
	"": "text/html; charset=utf-8", "page.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
	"page.js": "text/javascript; charset=utf-8", "common.js": "text/javascript; charset=utf-8",
}

// Handler serves the page and its data. The path at which it is mounted, such as /_sluice/, must already be stripped
// from requests, and must end with a slash, since the links of the page are relative. It answers GET and HEAD. status
// is called once for each request of data.json, and must be safe for concurrent use.
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
		h.Set("Cache-Control", "no-store")
		file := strings.TrimPrefix(req.URL.Path, "/")
		switch contentType, ok := contentTypes[file]; {
		case file == "data.json":
			status := status()
			writeData(w, r.data(&status))
		case !ok:
			http.Error(w, "there is no such page", http.StatusNotFound)
		default:
			h.Set("Content-Type", contentType)
			http.ServeFileFS(w, req, files, "page/"+cmp.Or(file, "index.html")) //nolint:gosec // one of contentTypes
		}
	})
}

func writeData(w http.ResponseWriter, data Data) {
	body, err := json.Marshal(data) // escapes <, > and &: harmless even if a browser is made to read it as markup
	if err != nil {
		http.Error(w, "the data cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails only if the client is gone
}
