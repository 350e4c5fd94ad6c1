package simulate

// Bounded returns o with a small bound, in bytes, on what is held in memory of each log.
func Bounded(o Options, window int) Options {
	o.windowBytes = window
	return o
}
