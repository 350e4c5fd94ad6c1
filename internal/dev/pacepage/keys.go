package pacepage

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// keyRows returns the rows of the keys for the time between two results, and the row of all other keys.
func keyRows(first, last *pacer.Stats, passed time.Duration) ([]KeyRow, *KeyRow) {
	before := make(map[string]*pacer.KeyStats, len(first.Keys))
	for i := range first.Keys {
		before[first.Keys[i].Key] = &first.Keys[i]
	}
	type change struct {
		now     *pacer.KeyStats
		granted int64
		waits   pacer.Waits
	}
	changes := make([]change, 0, len(last.Keys))
	for i := range last.Keys {
		c := change{&last.Keys[i], last.Keys[i].Granted, last.Keys[i].Waits}
		if b := before[c.now.Key]; b != nil && b.Granted <= c.granted {
			c.granted, c.waits = c.granted-b.Granted, c.waits.Since(&b.Waits)
		}
		if c.granted > 0 || c.now.Waiting > 0 {
			changes = append(changes, c)
		}
		delete(before, c.now.Key)
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(b.granted, a.granted), cmp.Compare(b.now.Waiting, a.now.Waiting))
	})
	row := func(c *change, keys int) KeyRow {
		r := KeyRow{Key: c.now.Key, Waiting: c.now.Waiting, Granted: c.granted, Waits: waitsOf(&c.waits), Keys: keys}
		if passed > 0 {
			r.PerSecond = float64(c.granted) / passed.Seconds()
		}
		return r
	}
	others := last.Others
	rest := change{now: &others, granted: others.Granted - first.Others.Granted,
		waits: others.Waits.Since(&first.Others.Waits)}
	for _, gone := range before { // the last result counts such a key among all other keys
		rest.granted -= gone.Granted
		rest.waits = rest.waits.Since(&gone.Waits)
	}
	rows := make([]KeyRow, 0, MaxKeys)
	for i := range changes {
		c := &changes[i]
		if len(rows) < MaxKeys {
			rows = append(rows, row(c, 1))
			continue
		}
		others.Waiting += c.now.Waiting
		rest.granted += c.granted
		rest.waits.Add(&c.waits)
	}
	if rest.granted == 0 && others.Waiting == 0 {
		return rows, nil
	}
	all := row(&rest, 0)
	return rows, &all
}
