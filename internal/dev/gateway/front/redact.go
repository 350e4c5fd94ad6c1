package front

import (
	"context"
	"log/slog"
	"regexp"
)

// addresses are IP addresses as the net packages write them: IPv4 with or without port, IPv6 in brackets.
var addresses = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}` +
	`(:\d+)?\b|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\]\s]*)?\](:\d+)?`)

// redact takes addresses out of texts of others that go to a log: errors of the net packages name both ends.
func redact(s string) string { return addresses.ReplaceAllString(s, "[address]") }

// redactor is a slog.Handler that redacts messages: net/http logs the peers of connections that went wrong.
type redactor struct{ slog.Handler }

func (h redactor) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, redact(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool { out.AddAttrs(a); return true })
	return h.Handler.Handle(ctx, out)
}
