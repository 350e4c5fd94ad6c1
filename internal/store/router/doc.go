// Package router sends each limit of a request to the store that counts it, and decides over all of these stores all or
// nothing.
//
// # Which store counts a limit
//
// A cell may keep its quotas in one store and its rates in another ([Config.Rates], [Config.Quotas]). Other cells may
// keep limits, too ([Config.Homes]): a limit that names one of them as its limit.Limit.Home is counted in that cell's
// store. A rate that this cell keeps for several cells is counted with the quotas, which other cells can reach.
//
// Each store is called through its guard ([Guard]), such as a circuit breaker.
//
// # All or nothing over several stores
//
// The stores are asked one after the other: first the homes in the order of their names, then the store of the cell's
// quotas, and last the store of its rates. At each stage of that order, what the package calls "the quotas" is the part
// of the request that is decided now, and "the rates" is everything after it.
//
// The quotas' units are charged first. If the rates then deny or fail, these units are not given back over the network.
// They are held here, and the next request for the same units spends them. So a client that hammers against a rate
// costs the quotas' store nothing. Held units that nobody spends are refunded after a few seconds, and at
// [Store.Close]. Held units whose period ends are dropped. A process that dies loses what it held: units are lost, and
// never too many admitted.
//
// While units are held, the decision may report too little as remaining of a quota, by as much. Nothing is admitted or
// denied wrongly: before a quota denies, what is held for its owner is given back.
//
// Units of a rate are never held: spent later than they were charged, they would come on top of what the rate allows
// then. They are refunded. An older receipt of a token bucket takes such a refund for one of its own charge, and gives
// back less.
//
// # Requests that lease
//
// A request that leases (limit.Request.Leases) is decided in the same order, and each store leases its own part. If the
// rates then deny:
//
//   - What was charged to a quota that the request leases stays with the caller as a lease. [limit.Decision.Grant] says
//     so.
//   - What was charged to another quota, such as one that is exact, is held here if the request asks nothing else of
//     the quotas. If not, it is refunded beside the decision.
//   - Units that the request gave back to a quota are charged again, because a denial changes nothing: first out of
//     what the request was charged, then by a second call. If others have been admitted for these units by then, the
//     whole decision is an error, and the units count as given back.
//
// If the rates fail, everything is given back beside the decision. Until they answer again, they are asked before the
// quotas are charged. What cannot be given back is lost, and never spent twice.
//
// A store of which nothing is asked, because the caller has all of its units in hand, need not answer. So leases of a
// store that is away can be spent. The results of such a store are as if its counters had never been used. Another cell
// may be far away: if nothing is asked of its store, it is not called at all, and its results are marked
// [limit.Result.Unasked].
//
// # Corrections
//
// A request that needs and leases nothing corrects what is counted ([limit.LeaseRequest.Correction]). It is the exception to all
// or nothing: every store corrects its part, whatever the others answer. By errors.Is, the error of such a request is
// only what is true of each part: an error that says that nothing was sent is true of all parts. After any other error,
// each part may or may not have been corrected. Units counted by a request that needs something as well are taken off
// again if the rates deny, except in buckets. They stay counted if the rates fail.
//
// Everything else is as the stores say, each by its own clock. A decision over several stores has the time of the last
// one, which is that of the rates if they are concerned, and its leases end by that clock.
package router
