package pacer_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// All Go code in docs/consumer.md is part of an example, so it compiles.
func TestConsumerPage(t *testing.T) {
	flat := func(code string) string {
		lines := strings.Split(strings.TrimSpace(code), "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	page, err := os.ReadFile("../docs/consumer.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples strings.Builder
	for _, name := range []string{"example_test.go", "awspacer/example_test.go", "grpcpacer/example_test.go",
		"sqsworker/example_test.go", "../redisstore/example_test.go"} {
		code, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		examples.WriteString(flat(string(code)) + "\n")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 4 {
		t.Errorf("docs/consumer.md has %d blocks of Go, too few", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples.String(), flat(b[1])) {
			t.Errorf("this code of docs/consumer.md is in no example:\n%s", b[1])
		}
	}
}
