package simulate

// Bounded is o with small bounds on what is held in memory, bytes.
func Bounded(o Options, window, sort int) Options {
	o.windowBytes, o.sortBytes = window, sort
	return o
}
