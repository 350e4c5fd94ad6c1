// Package reportpage writes the report of a simulation as one HTML page that loads nothing from elsewhere: the frame,
// the style, the plot over time, and a Content-Security-Policy that lets no other script run.
//
// A page is a template made by [New], with its own sections. It begins with {{template "frame-begin" .}}, whose dot has
// the methods of [Page] and a method Title, and ends with {{template "frame-end" .}}. The script draws the element with
// the id "timeline" from the data of the page; report.js says which fields of the data it reads.
package reportpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"strconv"
)

var (
	//go:embed frame.html
	frameHTML string
	//go:embed report.css
	styleText string
	//go:embed report.js
	scriptText string
)

// Page is the part of a page's data that the frame uses.
type Page struct {
	Policy string // Content-Security-Policy
	CSS    template.CSS
	Script template.JS
	Data   template.JS // the data that the script reads
}

// New returns the template of a page. Its text may use the templates of the frame, and the functions grouped and
// share beside the given ones.
func New(name, text string, functions template.FuncMap) *template.Template {
	all := template.FuncMap{"grouped": Grouped, "share": Share}
	maps.Copy(all, functions)
	return template.Must(template.Must(template.New(name).Funcs(all).Parse(frameHTML)).Parse(text))
}

// PageOf returns a page whose script reads data, encoded as JSON.
func PageOf(data any) (Page, error) {
	text, err := json.Marshal(data) // escapes <, > and &, so the text cannot end its script element
	if err != nil {
		return Page{}, fmt.Errorf("write the report: %w", err)
	}
	return Page{
		Policy: fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; base-uri 'none'; "+
			"form-action 'none'", sourceHash(styleText), sourceHash(scriptText)),
		CSS:    template.CSS(styleText), //nolint:gosec // the program's own text
		Script: template.JS(scriptText), //nolint:gosec // the program's own text
		Data:   template.JS(text),       //nolint:gosec // JSON with <, > and & escaped
	}, nil
}

// Write writes the whole page, or nothing if the template fails.
func Write(w io.Writer, t *template.Template, page any) error {
	var out bytes.Buffer
	if err := t.Execute(&out, page); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// sourceHash returns the source expression that allows the text in a Content-Security-Policy.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Grouped returns the number with its thousands separated.
func Grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Share returns n in percent of all, with one decimal.
func Share(n, all int64) string {
	if all == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(all))
}
