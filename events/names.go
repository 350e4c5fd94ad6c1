package events

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table is a control table.
type Table string

// The control tables.
const (
	Plans      Table = "plans"      // plans by id; and SettingsKey, CanaryKey
	Tenants    Table = "tenants"    // by id
	Keys       Table = "keys"       // API keys by id
	Cells      Table = "cells"      // by name; and SharesKey, and keys with a prefix, such as PlacementPrefix
	Operations Table = "operations" // operators' changes of a cell's counters, by the operation's id
)

// AllTables lists the control tables.
func AllTables() []Table { return []Table{Plans, Tenants, Keys, Cells, Operations} }

// CheckKey returns an error unless an item of the table can have the key. In plans, cells and operations, a key is an
// id of 1..64 characters of A-Z a-z 0-9 . _ -. In the other tables, a key is 1..128 bytes of UTF-8 without control
// characters.
func CheckKey(t Table, key string) error {
	if isFixedKey(t, key) {
		return nil
	}
	switch t {
	case Plans, Cells, Operations:
		return checkID(key)
	case Tenants, Keys:
		return checkName(key)
	}
	return fmt.Errorf("%.64q is not a control table", t)
}

// Bounds of keys. They equal those of package limit for the ids of limits and plans and for the names of owners. This
// package imports nothing of Sluice, so it repeats them, and a test checks that they are equal.
const (
	maxIDBytes   = 64
	maxNameBytes = 128
)

func checkID(s string) error {
	if !validID(s) {
		return fmt.Errorf("%.64q is not 1..64 characters of A-Z a-z 0-9 . _ -", s)
	}
	return nil
}

// validID reports whether s is 1..maxIDBytes characters of A-Z a-z 0-9 . _ -.
func validID(s string) bool {
	return s != "" && len(s) <= maxIDBytes && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) < 0
}

func checkName(s string) error {
	switch {
	case s == "" || len(s) > maxNameBytes:
		return fmt.Errorf("%d bytes, want 1..%d", len(s), maxNameBytes)
	case !utf8.ValidString(s):
		return fmt.Errorf("not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%q holds a control character", s)
	}
	return nil
}

// CheckText returns an error unless s can be an actor or a reason: 1..MaxTextChars characters of UTF-8 without control
// characters and line ends, so that it is always shown as one line.
func CheckText(s string) error {
	switch {
	case len(s) > utf8.UTFMax*MaxTextChars || utf8.RuneCountInString(s) > MaxTextChars:
		return fmt.Errorf("more than %d characters", MaxTextChars)
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("empty")
	case !utf8.ValidString(s):
		return fmt.Errorf("not valid UTF-8")
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }):
		return fmt.Errorf("holds a control character")
	}
	return nil
}

// CheckTable returns an error unless t is a control table.
func CheckTable(t Table) error {
	if !slices.Contains(AllTables(), t) {
		return fmt.Errorf("%.64q is not a control table", t)
	}
	return nil
}
