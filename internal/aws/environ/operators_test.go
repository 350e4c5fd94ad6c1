package environ_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sluicelimits/sluice/internal/aws/environ"
)

// Guarantees that the admin function starts with its tables alone, and that each wrong variable is named and no value
// repeated.
func TestParseAdmin(t *testing.T) {
	tables := []string{"PATH=/bin", "SLUICE_API=a1b2c3/v1", "SLUICE_PLANS_TABLE=plans",
		"SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys",
		"SLUICE_CELLS_TABLE=arn:aws:dynamodb:eu-west-1:123456789012:table/cells"}
	s, err := environ.Read[environ.Admin](tables)
	if err != nil || s.API != "a1b2c3/v1" || s.Tables.Plans != "plans" || len(s.CellTable) != 0 || s.Secret != "" {
		t.Fatalf("got %+v, %v", s, err)
	}
	s, err = environ.Read[environ.Admin](slices.Concat(tables,
		[]string{"SLUICE_STATUS_CELLS=eu-1=config-eu,us-1=config-us", "SLUICE_SECRET=sluice", "SLUICE_KEY_PEPPER=p1"}))
	if err != nil || len(s.CellTable) != 2 || s.CellTable[1].Table != "config-us" || s.Pepper != "p1" {
		t.Fatalf("got %+v, %v", s, err)
	}
	for _, api := range []string{"hush", "/v1", "a1b2c3/", "a1b2c3/v1/POST", "a1/v1,a2/v1"} {
		_, err := environ.Read[environ.Admin](append(slices.Clone(tables[2:]), "SLUICE_API="+api))
		if err == nil || !strings.Contains(err.Error(), "SLUICE_API") || strings.Contains(err.Error(), "hush") {
			t.Errorf("SLUICE_API=%s: %v", api, err)
		}
	}
	for says, variables := range map[string][]string{
		"SLUICE_API":          tables[2:],
		"SLUICE_PLANS_TABLE":  {},
		"SLUICE_KEY_PEPPER":   slices.Concat(tables, []string{"SLUICE_SECRET=hush"}),
		"SLUICE_STATUS_CELLS": slices.Concat(tables, []string{"SLUICE_STATUS_CELLS=hush"}),
		"SLUICE_CELL ":        slices.Concat(tables, []string{"SLUICE_CELL=hush"}),
	} {
		if _, err := environ.Read[environ.Admin](variables); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// Guarantees that an ops function counts where its cell's authorizer does, by the same variables, and has a table for
// what it does.
func TestParseOps(t *testing.T) {
	cell := []string{"SLUICE_CELL=eu-1", "SLUICE_API=a1b2c3/v1", "SLUICE_CONFIG_TABLE=config",
		"SLUICE_COUNTERS_TABLE=counters", "SLUICE_SECRET=secret", "SLUICE_MAX_INSTANCES=10"}
	s, err := environ.ParseOps(slices.Concat(cell, []string{"SLUICE_OPERATIONS_TABLE=operations"}), fstest.MapFS{}, nil)
	if err != nil || s.Cell != "eu-1" || s.CountersTable != "counters" || s.API != "a1b2c3/v1" ||
		s.Operations != "operations" {
		t.Fatalf("got %+v, %v", s, err)
	}
	_, err = environ.ParseOps(cell[1:], fstest.MapFS{}, nil)
	if err == nil || !strings.Contains(err.Error(), "SLUICE_OPERATIONS_TABLE") ||
		!strings.Contains(err.Error(), "SLUICE_CELL ") {
		t.Errorf("got %v, want both that are missing", err)
	}
	file := slices.Concat([]string{"SLUICE_CONFIG_FILE=plans.yaml", "SLUICE_OPERATIONS_TABLE=operations"},
		slices.DeleteFunc(slices.Clone(cell),
			func(v string) bool { return strings.HasPrefix(v, "SLUICE_CONFIG_TABLE") }))
	if _, err := environ.ParseOps(file, fstest.MapFS{"plans.yaml": {Data: []byte("x")}}, nil); err == nil ||
		!strings.Contains(err.Error(), "SLUICE_CONFIG_TABLE") {
		t.Errorf("with a plans file: %v", err)
	}
}
