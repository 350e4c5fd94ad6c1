package stand

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Guarantees that a type which LocalStack did not create is an error unless it is on the list, and that a type on the
// list is an error unless LocalStack did not create it.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name    string
		skipped map[string][]string
		may     map[string]string
		want    []string
	}{
		{"as listed", map[string][]string{"AWS::A::B": {"s1", "s2"}}, map[string]string{"AWS::A::B": "why"}, nil},
		{"nothing", nil, nil, nil},
		{"a new one", map[string][]string{"AWS::A::B": {"s1"}, "AWS::C::D": {"s1", "s2"}},
			map[string]string{"AWS::A::B": "why"}, []string{"AWS::C::D of s1, s2"}},
		{"none any more", nil, map[string]string{"AWS::A::B": "why"}, []string{"names AWS::A::B"}},
		{"both", map[string][]string{"AWS::C::D": {"s1"}}, map[string]string{"AWS::A::B": "why"},
			[]string{"AWS::C::D of s1", "names AWS::A::B"}},
	} {
		err := compare(tt.skipped, tt.may)
		if (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", tt.name, err, want)
			}
		}
	}
}

// Guarantees that each line of the list must have a reason and may occur once, and that the error names the line.
func TestMaySkip(t *testing.T) {
	for text, want := range map[string]string{
		"# a remark\n\nAWS::A::B  it is not needed\n": "",
		"AWS::A::B why\nAWS::A::B again\n":            "skipped.txt:2",
		"AWS::A::B why\n\nAWS::C::D\n":                "skipped.txt:3",
		"Dashboard why\n":                             "skipped.txt:1",
	} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "localstack"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "localstack", "skipped.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		may, err := (&Stand{o: Options{Root: root}}).MaySkip()
		switch {
		case want == "" && (err != nil || len(may) != 1 || may["AWS::A::B"] != "it is not needed"):
			t.Errorf("%q is read as %v, %v", text, may, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}
