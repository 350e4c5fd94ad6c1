package cell

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

// asBefore restores the settings of the garbage collector at the end of the test.
func asBefore(t *testing.T) {
	memory, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(goGarbagePercent)
	t.Cleanup(func() {
		debug.SetMemoryLimit(memory)
		debug.SetGCPercent(percent)
	})
}

// Guarantees that garbage is collected rarely, also after repeated calls, unless the operator has set GOGC.
func TestGarbagePercent(t *testing.T) {
	asBefore(t)
	for range 2 {
		divide("512").setLimits()
		if got := debug.SetGCPercent(garbagePercent); got != garbagePercent {
			t.Errorf("GOGC is %d, want %d", got, garbagePercent)
		}
	}
	for _, theirs := range []int{50, 1000, -1} {
		debug.SetGCPercent(theirs)
		divide("512").setLimits()
		if got := debug.SetGCPercent(theirs); got != theirs {
			t.Errorf("GOGC is %d, want %d, as the operator has set it", got, theirs)
		}
	}
}

var (
	kept    [][]byte
	garbage []byte
)

// makeGarbage keeps some MB, makes 400 MB of garbage, and returns the largest size of the heap.
func makeGarbage(keepMB int) (most uint64) {
	kept = make([][]byte, keepMB)
	for i := range kept {
		kept[i] = make([]byte, 1<<20)
	}
	for range 400 {
		garbage = make([]byte, 1<<20)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapInuse)
	}
	kept, garbage = nil, nil
	return most
}

// Guarantees that the smallest function stays within its memory while it collects rarely and uses half of its memory;
// without the limit it would not.
func TestGarbageStaysWithinMemory(t *testing.T) {
	asBefore(t)
	m := divide("128")
	m.setLimits()
	const half = 64
	runtime.GC()
	if most := makeGarbage(half); most > uint64(m.all) {
		t.Errorf("the heap grew to %d MB, want at most the function's %d MB", most>>20, m.all>>20)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	runtime.GC()
	if most := makeGarbage(half); most <= uint64(m.all) {
		t.Errorf("without the memory limit the heap grew to only %d MB of %d: the test shows nothing", most>>20,
			m.all>>20)
	}
}
