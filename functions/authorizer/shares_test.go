//go:build unix

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
)

// Guarantees that a deployed cell that is one of several denies every tenant until it has its shares, and admits after
// that: a new cell must not grant what others grant already.
func TestConfigTableWithoutShares(t *testing.T) {
	w := newWorld(t, ten)
	config := w.withConfigTable()
	config.apply(1, plans(thousand, w.key))
	w.start()
	for range 3 {
		if o, err := w.call("x-api-key", w.key); err == nil && o.effect() == "Allow" {
			t.Fatalf("allowed before there are shares: %v", o.Context)
		}
	}
	config.put(table.Document{Ref: table.Ref{Kind: table.KindShares, ID: table.SharesID},
		Version: 1, Body: []byte(
			`{"version":2,"epoch":1,"phase":"steady","skew_us":0,"members":[{"cell":"eu-1","state":"active",` +
				`"weight":1}],` +
				`"generations":[{"epoch":1,"from":1,"cells":[{"cell":"eu-1","weight":1}]}]}`)})
	for end := time.Now().Add(patient); ; <-time.After(100 * time.Millisecond) {
		if o, err := w.call("x-api-key", w.key); err == nil && o.effect() == "Allow" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not allowed though there are shares\n%s", strings.Join(w.output(), "\n"))
		}
	}
	w.close()
	if told := strings.Join(w.output(), "\n"); !strings.Contains(told, "the table has no shares") {
		t.Errorf("the log does not say why nothing was granted:\n%s", told)
	}
}
