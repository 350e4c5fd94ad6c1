// Package redact removes the addresses of clients from texts that go to a log.
package redact

import (
	"context"
	"log/slog"
	"regexp"
)

// addresses matches IP addresses as the net packages write them: IPv4 with or without a port, IPv6 in brackets.
var addresses = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}` +
	`(:\d+)?\b|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\]\s]*)?\](:\d+)?`)

// Text returns the text with [address] in place of each address. Errors of the net packages name both ends of a
// connection.
func Text(s string) string { return addresses.ReplaceAllString(s, "[address]") }

// Handler is a [slog.Handler] that redacts messages, because net/http logs the clients' addresses of failed
// connections.
type Handler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h Handler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool { out.AddAttrs(a); return true })
	return h.Handler.Handle(ctx, out)
}
