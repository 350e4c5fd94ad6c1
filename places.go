package sluice

// Hold keeps the places that a request has taken of limits with concurrency, while the request is served: it renews
// them every quarter of the shortest holdFor. Call release when the request has ended, also after a panic. It gives the
// places back, as Settle and Cancel do, and changes nothing else of the reservation. A release that fails is made again
// until holdFor is over. If r has no places, Hold does nothing.
//
// The middlewares call Hold for each request. If nobody does, the places come free after holdFor.
func (l *Limiter) Hold(r Reservation) (release func()) {
	if r.inner == nil {
		return func() {}
	}
	return r.inner.places.Hold()
}
