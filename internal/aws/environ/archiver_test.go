package environ_test

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/aws/environ"
)

var archived = []string{
	"SLUICE_PLANS_TABLE=plans", "SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys", "SLUICE_CELLS_TABLE=cells",
	"SLUICE_OPERATIONS_TABLE=operations",
	"SLUICE_AUDIT_BUCKET=audit.example-1",
}

// Guarantees that what is not set has its default.
func TestArchiver(t *testing.T) {
	want := &environ.Archiver{
		Common: environ.Common{LogLevel: slog.LevelInfo, MetricsNamespace: "Sluice"}, Operations: "operations",
		Bucket: "audit.example-1",
		Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants", Keys: "keys", Cells: "cells"},
	}
	if got, err := environ.Read[environ.Archiver](archived); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	want.LogLevel = slog.LevelDebug
	set := append([]string{"SLUICE_LOG_LEVEL=debug"}, archived...)
	if got, err := environ.Read[environ.Archiver](set); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// Guarantees that each wrong setting is named, all in one go, without its value.
func TestArchiverRefuses(t *testing.T) {
	_, err := environ.Read[environ.Archiver]([]string{
		"SLUICE_AUDIT_BUCKET=s3://" + marker, "SLUICE_PLANS_TABLE=arn:" + marker, "SLUICE_CELL=" + marker,
	})
	var e *environ.Error
	if !errors.As(err, &e) || strings.Contains(err.Error(), marker) {
		t.Fatalf("%v", err)
	}
	var names []string
	for _, p := range e.Problems {
		names = append(names, strings.TrimPrefix(p.Variable, "SLUICE_"))
	}
	want := "CELL PLANS_TABLE TENANTS_TABLE KEYS_TABLE CELLS_TABLE OPERATIONS_TABLE AUDIT_BUCKET"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
