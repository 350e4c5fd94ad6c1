//go:build unix

package main

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/store/dynamodb/dynamodbtest"
)

// Guarantees that a deployed cell that is one of several allows nobody before it has heard its shares, though it knows the tenant, and
// does once it has: a new cell must not grant what others grant already.
func TestConfigTableWithoutShares(t *testing.T) {
	w := newWorld(t, ten)
	client, done := dynamodbtest.Connect(w.withDynamoDB())
	defer done()
	name := "config-" + strings.ToLower(rand.Text())
	if err := table.Create(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
	delete(w.env, "SLUICE_CONFIG_FILE")
	w.env["SLUICE_CONFIG_TABLE"] = name
	documents, err := table.New(table.Config{Client: client, Table: name})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(all ...cellconfig.Document) {
		t.Helper()
		if _, err := documents.Apply(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	split, err := plan.Split(time.Now(), plan.Source{Name: "plans.yaml", Data: []byte(plans(thousand, w.key))})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range split {
		apply(cellconfig.Document{Ref: cellconfig.Ref{Kind: d.Kind, ID: d.ID}, Version: 1, Body: d.Body})
	}
	w.start()
	for range 3 {
		if o, err := w.call("x-api-key", w.key); err == nil && o.effect() == "Allow" {
			t.Fatalf("allowed before there are shares: %v", o.Context)
		}
	}
	apply(cellconfig.Document{Ref: cellconfig.Ref{Kind: cellconfig.KindShares, ID: cellconfig.SharesID}, Version: 1, Body: []byte(
		`{"version":1,"epoch":1,"phase":"steady","skew_us":0,"members":[{"cell":"eu-1","state":"active","weight":1}],` +
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
	if told := strings.Join(w.output(), "\n"); !strings.Contains(told, "there are no shares") {
		t.Errorf("nobody is told why nothing was granted:\n%s", told)
	}
}
