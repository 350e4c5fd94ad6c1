package bench

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// benchmarks compiles the benchmarks of this package, and returns the path of the program.
var benchmarks = sync.OnceValues(func() (program string, err error) {
	program = filepath.Join(tree(), "dist", "bench.test")
	build := exec.Command("go", "test", "-c", "-o", program, ".") //nolint:gosec // the program is this repository's
	build.Dir = filepath.Join(tree(), "bench")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	return program, nil
})

// metrics holds the results of a benchmark by their units, such as ns/op.
type metrics map[string]float64

// benchmarkFigure returns a measurement of a benchmark of this package's tests, which runs Sluice, and most often a
// peer in turn, for the given number of rounds. Its value is computed from the results of both.
func benchmarkFigure(name string, rounds int, value func(ours, peer metrics) float64) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		program, err := benchmarks()
		if err != nil {
			return r, err
		}
		args := []string{"-test.run=^$", "-test.bench=^Benchmark" + strings.ReplaceAll(name, "/", "$/^") + "$",
			"-test.benchtime=10ms", fmt.Sprintf("-rounds=%d", rounds)}
		if short {
			args = append(args, "-test.short", "-rounds=3")
		}
		cmd := exec.Command(program, args...) //nolint:gosec // the program is this repository's
		cmd.Dir = filepath.Join(tree(), "bench")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return r, fmt.Errorf("%w\n%s", err, out)
		}
		var peer metrics
		sides := readBenchmark(name, string(out))
		for _, side := range slices.Sorted(maps.Keys(sides)) {
			var text []string
			for _, unit := range slices.Sorted(maps.Keys(sides[side])) {
				text = append(text, fmt.Sprintf("%.4g %s", sides[side][unit], unit))
			}
			r.note("%s: %s", side, strings.Join(text, ", "))
			if side != "sluice" {
				peer = sides[side]
			}
		}
		if sides["sluice"] == nil || len(sides) > 2 {
			return r, fmt.Errorf("the benchmark has no results of sluice, or of several peers:\n%s", out)
		}
		r.Value = value(sides["sluice"], peer)
		return r, nil
	}
}

// calmPart is the part of the runs of a benchmark that is taken to be undisturbed. If another program uses the other
// half of a core, the same instructions take about half as long again, and if it uses the core, goroutines that should
// run at once take turns. Both make a run slow, so of many short runs the fast ones tell what the benchmark takes.
const calmPart = 0.1

// readBenchmark returns the results of the benchmark's parts by their names: of each number the one that the calm part
// of the runs did not exceed. Names of repeated runs have a number at the end, after #, and the number of processors.
func readBenchmark(name, out string) map[string]metrics {
	runs := map[string]map[string][]float64{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		part, ok := strings.CutPrefix(fields[0], "Benchmark"+name+"/")
		if !ok {
			continue
		}
		part, _, _ = strings.Cut(part, "#")
		part, _, _ = strings.Cut(part, "-")
		if runs[part] == nil {
			runs[part] = map[string][]float64{}
		}
		for field := range slices.Chunk(fields[2:], 2) {
			if v, err := strconv.ParseFloat(field[0], 64); err == nil && len(field) == 2 {
				runs[part][field[1]] = append(runs[part][field[1]], v)
			}
		}
	}
	sides := map[string]metrics{}
	for part, units := range runs {
		sides[part] = metrics{}
		for unit, values := range units {
			sides[part][unit] = quantile(values, calmPart)
		}
	}
	return sides
}

func timeRatio(ours, peer metrics) float64  { return ours["ns/op"] / peer["ns/op"] }
func speedRatio(ours, peer metrics) float64 { return peer["ns/op"] / ours["ns/op"] }
func perSecond(ours, _ metrics) float64     { return 1e9 / ours["cpu-ns/op"] }
func cpuMicros(ours, _ metrics) float64     { return ours["cpu-ns/op"] / 1e3 }

// inUnit returns a result of ours.
func inUnit(unit string) func(ours, _ metrics) float64 {
	return func(ours, _ metrics) float64 { return ours[unit] }
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the value that the part q of all values does not exceed.
func quantile(values []float64, q float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[int(q*float64(len(values)))]
}

// processorTime returns how much processor time this process has used so far. Figures about one processor use it,
// because it does not include the time in which other programs run on the same processor.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot happen with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heapInUse returns how many bytes the live objects take.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // the first one may leave garbage that a sweep in progress has not reached
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
