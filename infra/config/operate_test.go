package config_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
)

// Guarantees that the parts of a deployment file in docs/operate.md are valid.
func TestOperatePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d parts of a deployment file, want 2", len(blocks))
	}
	for _, b := range blocks {
		text := "control: { region: eu-west-1 }\n" + b[1]
		if !strings.Contains(text, "cells:") {
			text += "cells: [ { id: eu-1, region: eu-west-1 } ]\n"
		}
		d, err := config.Read("d.yaml", []byte(text))
		if err != nil || d.Alarms.Email == "" && d.Cells[0].WAF == nil {
			t.Errorf("%s: %+v, %v", b[1], d, err)
		}
	}
}
