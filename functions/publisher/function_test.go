//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

func env() map[string]string {
	return map[string]string{
		"SLUICE_PLANS_TABLE": "plans", "SLUICE_TENANTS_TABLE": "tenants", "SLUICE_KEYS_TABLE": "keys",
		"SLUICE_TOPIC":      "arn:aws:sns:eu-west-1:123456789012:changes",
		"SLUICE_KEPT_QUEUE": "https://sqs.eu-west-1.amazonaws.com/123456789012/kept",
	}
}

// Guarantees that the deployed binary publishes the records of a stream while SNS throttles, keeps a poison record, and
// counts.
func TestFunction(t *testing.T) {
	aws := functiontest.StartAWS(t)
	f := functiontest.Start(t, aws.URL, env())
	h := streamstest.History(t, control.Tenants, "acme", `{"id":"acme","plan":"pro"}`, `{"id":"acme","plan":"free"}`)
	good := []string{functiontest.Record(t, 1, h[0]), functiontest.Record(t, 3, h[1])}
	poison := strings.Replace(strings.Replace(good[0], `"acme"`, `"odd"`, 1), `"SequenceNumber":"1"`,
		`"SequenceNumber":"2"`, 1)
	aws.Throttle(1)
	if got := f.Call(`{"Records":[` + good[0] + "," + poison + "," + good[1] +
		`]}`); got != `{"batchItemFailures":[]}` {
		t.Errorf("answered %s", got)
	}
	published := aws.Published()
	if len(published) != 2 {
		t.Fatalf("published %q", published)
	}
	for i, body := range published {
		e, err := events.Decode([]byte(body))
		if err != nil || e.Header().ID != fmt.Sprintf("tenants/acme/%d", i+1) {
			t.Errorf("published %s, %v", body, err)
		}
	}
	if all := aws.Kept(); len(all) != 1 {
		t.Errorf("kept %q", all)
	} else if i, _, err := delivery.DecodeDeadLetter([]byte(all[0])); err != nil || i.ID != "2" {
		t.Errorf("kept %+v, %v", i, err)
	}
	for name, want := range map[string]float64{"records_read": 3, "events_published": 2, "records_kept": 1,
		"records_again": 0} {
		if got := f.Metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// Guarantees that invalid settings stop the function, with an error that names all of them and none of their values.
func TestBadEnvironment(t *testing.T) {
	e := env()
	delete(e, "SLUICE_PLANS_TABLE")
	e["SLUICE_TOPIC"], e["SLUICE_CELL"] = "hunter2", "hunter2"
	told := functiontest.Start(t, "http://127.0.0.1:9", e).Refusal()
	for _, want := range []string{"SLUICE_PLANS_TABLE is missing", "SLUICE_TOPIC must be",
		"SLUICE_CELL is not a variable of the publisher"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda is not told of %q: %s", want, told)
		}
	}
	if strings.Contains(told, "hunter2") {
		t.Errorf("a value is told: %s", told)
	}
}
