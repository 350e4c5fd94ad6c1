package control_test

import (
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// Guarantees the names of objects, which are under Object Lock for years.
func TestObjectName(t *testing.T) {
	for _, tt := range []struct {
		table   control.Table
		key     string
		version int64
		want    string
	}{
		{control.Plans, "pro.v2", 1, "audit/plans/pro.v2/0000000000000001.json"},
		{control.Plans, events.SettingsKey, 12, "audit/plans/!40settings/0000000000000012.json"},
		{control.Tenants, "..", 1, "audit/tenants/!2E./0000000000000001.json"},
		{control.Tenants, "a/é!", events.MaxVersion, "audit/tenants/a!2F!C3!A9!21/9007199254740991.json"},
	} {
		got := control.ObjectName(tt.table, tt.key, tt.version)
		if got != tt.want {
			t.Errorf("ObjectName = %s, want %s", got, tt.want)
		}
		if !strings.HasPrefix(got, control.ObjectFolder(tt.table, tt.key)) {
			t.Errorf("got the name %s, want it in %s", got, control.ObjectFolder(tt.table, tt.key))
		}
	}
	if n := len(control.ObjectName(control.Operations, strings.Repeat("/", 128), events.MaxVersion)); n > 423 {
		t.Errorf("got a longest name of %d bytes, want at most 423", n)
	}
}

// Guarantees that a name that Sluice did not write is not taken for one of its records.
func TestParseObjectName(t *testing.T) {
	for _, name := range []string{
		"", "audit/", "plans/pro/0000000000000001.json", "audit/plans/pro", "audit/plans/pro/1.json",
		"audit/plans/pro/0000000000000001",
		"audit/plans/pro/0000000000000000.json", "audit/plans/pro/-000000000000001.json",
		"audit/plans/pro/+000000000000001.json",
		"audit/plans/pro/9999999999999999.json", "audit/plans/pro/0000000000000001.json/x",
		"audit/counters/pro/0000000000000001.json",
		"audit/plans//0000000000000001.json", "audit/plans/!70ro/0000000000000001.json",
		"audit/plans/!4/0000000000000001.json",
		"audit/plans/!+4/0000000000000001.json", "audit/tenants/!2f/0000000000000001.json",
		"audit/tenants/é/0000000000000001.json",
		"audit/tenants/./0000000000000001.json", "audit/tenants/!FF/0000000000000001.json",
		"/audit/plans/pro/0000000000000001.json",
	} {
		if table, key, version, err := control.ParseObjectName(name); err == nil {
			t.Errorf("ParseObjectName(%q) = %s, %q, %d; want an error", name, table, key, version)
		}
	}
}

// FuzzObjectName guarantees that no two items of the archive share a name: one would be refused as an unequal copy of
// the other.
func FuzzObjectName(f *testing.F) {
	f.Add("tenants", "a/1", int64(1))
	f.Add("tenants", "a!2F1", int64(1))
	f.Add("plans", "..", int64(1))
	f.Add("cells", "@shares", int64(2))
	f.Fuzz(func(t *testing.T, table, key string, version int64) {
		if events.CheckKey(control.Table(table), key) != nil || version < 1 || version > events.MaxVersion {
			return
		}
		name := control.ObjectName(control.Table(table), key, version)
		gotTable, gotKey, gotVersion, err := control.ParseObjectName(name)
		if err != nil || string(gotTable) != table || gotKey != key || gotVersion != version {
			t.Fatalf("ParseObjectName(%q) = %s, %q, %d, %v; want %s, %q, %d", name, gotTable, gotKey, gotVersion, err,
				table, key, version)
		}
		for _, c := range []byte(name) {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!-_./", rune(c)) {
				t.Fatalf("%q holds %q, want only characters that are safe in names of S3", name, c)
			}
		}
	})
}

// FuzzParseObjectName guarantees that each name has one meaning: parsing and writing a name gives the same name.
func FuzzParseObjectName(f *testing.F) {
	f.Add("audit/tenants/a!2F1/0000000000000001.json")
	f.Add("audit/tenants/a!2f1/0000000000000001.json")
	f.Fuzz(func(t *testing.T, name string) {
		if table, key, version, err := control.ParseObjectName(name); err == nil &&
			control.ObjectName(table, key, version) != name {
			t.Fatalf("%q is read as %s, %q, %d, whose name is %q; want the same name, or an error", name, table, key,
				version,
				control.ObjectName(table, key, version))
		}
	})
}
