package stand //nolint:testpackage // readStat is not exported

import "testing"

// Guarantees that a process is read for what it is whatever its name holds, and that what is cut off is an error.
func TestReadStat(t *testing.T) {
	const stat = "42 (a) R 7 ) 9) S 17 42 42 0 -1 4194368 103 0 0 0 1 2 3 4 20 0 1 0 6113062 5246976 642 18446744073709551615\n"
	pid, parent, pages, err := readStat([]byte(stat))
	if err != nil || pid != 42 || parent != 17 || pages != 642 {
		t.Errorf("readStat: process %d of %d with %d pages, %v, want 42, 17, 642", pid, parent, pages, err)
	}
	for _, bad := range []string{"", "42 name S 17", "42 (a) S 17 42", "x" + stat} {
		if pid, parent, pages, err := readStat([]byte(bad)); err == nil {
			t.Errorf("readStat of %q: %d %d %d", bad, pid, parent, pages)
		}
	}
}
