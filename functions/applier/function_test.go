//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/function/functiontest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

func env(table string) map[string]string {
	return map[string]string{
		"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": table, "SLUICE_KEPT_QUEUE": "https://sqs.eu-west-1.amazonaws.com/123456789012/kept",
	}
}

// batch is the event of a queue with these messages.
func batch(t *testing.T, bodies ...string) string {
	t.Helper()
	records := []map[string]string{}
	for i, body := range bodies {
		records = append(records, map[string]string{"messageId": string(rune('a' + i)), "body": body, "eventSource": "aws:sqs"})
	}
	out, err := json.Marshal(map[string]any{"Records": records})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Guarantees that the deployed binary brings what a queue carries into DynamoDB, keeps what is none, and counts.
func TestFunction(t *testing.T) {
	stores := functiontest.NewStores(t)
	aws := functiontest.StartAWS(t)
	e := env(stores.Config)
	e["AWS_ENDPOINT_URL_DYNAMODB"] = stores.URL
	f := functiontest.Start(t, aws.URL, e)
	var bodies []string
	for _, d := range streamstest.History(t, control.Tenants, "acme", `{"id":"acme","plan":"pro"}`, `{"id":"acme","plan":"free"}`) {
		body, err := events.Encode(d.Record.Event())
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, string(body))
	}
	for range 2 {
		if got := f.Call(batch(t, bodies[1], "poison", bodies[0])); got != `{"batchItemFailures":[]}` {
			t.Errorf("answered %s", got)
		}
	}
	got, err := stores.Cell.Get(t.Context(), cellconfig.Ref{Kind: plan.KindTenant, ID: "acme"})
	if err != nil || got[0].Version != 2 || got[0].Seq != 1 || string(got[0].Body) != `{"id":"acme","plan":"free"}` {
		t.Errorf("%+v, %v", got, err)
	}
	if len(aws.Kept()) != 2 {
		t.Errorf("kept %q", aws.Kept())
	}
	if got := f.Metric("documents_applied"); got != 1 {
		t.Errorf("documents_applied is %v, want 1", got)
	}
}

// Guarantees that while nothing of AWS answers, the function starts, and its messages come again.
func TestNobodyAnswers(t *testing.T) {
	f := functiontest.Start(t, "http://127.0.0.1:9", env("config"))
	if got := f.Call(batch(t, "poison")); got != `{"batchItemFailures":[{"itemIdentifier":"a"}]}` {
		t.Errorf("answered %s", got)
	}
}

// Guarantees that wrong settings stop the function, all of them named.
func TestBadEnvironment(t *testing.T) {
	e := env("")
	e["SLUICE_KEPT_QUEUE"] = "kept"
	told := functiontest.Start(t, "http://127.0.0.1:9", e).Refusal()
	if !strings.Contains(told, "SLUICE_CONFIG_TABLE is missing") || !strings.Contains(told, "SLUICE_KEPT_QUEUE is to be") {
		t.Errorf("told %s", told)
	}
}
