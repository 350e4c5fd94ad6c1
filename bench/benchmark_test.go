package bench

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// The value of a figure must be of the benchmark that it names, and runs that other programs made slow must not decide.
func TestReadBenchmark(t *testing.T) {
	var out strings.Builder
	out.WriteString("goos: linux\ncpu: 2 x\n")
	for i := range 20 {
		name := ""
		if i > 0 {
			name = fmt.Sprintf("#%02d", i)
		}
		fmt.Fprintf(&out, "BenchmarkA/b/sluice%s-2  \t 100\t %d ns/op\t 7.5 cpu-ns/op\t 0 allocs/op\n", name, 100-i)
		fmt.Fprintf(&out, "BenchmarkA/bc/sluice%s-2  \t 100\t 1 ns/op\n", name)
		fmt.Fprintf(&out, "BenchmarkA/b/peer%s  \t 100\t %d ns/op\n", name, 2*(100-i))
	}
	out.WriteString("PASS\n")
	got := readBenchmark("A/b", out.String())
	want := map[string]metrics{"sluice": {"ns/op": 83, "cpu-ns/op": 7.5, "allocs/op": 0}, "peer": {"ns/op": 166}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("readBenchmark = %v, want %v", got, want)
	}
	in := []float64{9, 1, 5}
	if got := median(in); got != 5 || in[0] != 9 {
		t.Errorf("median(9, 1, 5) = %v, and leaves %v; want 5 and the argument unchanged", got, in)
	}
}
