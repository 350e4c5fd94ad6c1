package simulate

// Bounded returns o with small bounds, in bytes, on what is held in memory.
func Bounded(o Options, window, sort int) Options {
	o.windowBytes, o.sortBytes = window, sort
	return o
}
