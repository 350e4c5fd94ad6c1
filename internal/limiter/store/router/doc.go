// Package router sends each limit of a request to the store that counts it, and decides over all of these stores all or
// nothing.
//
// # Which store counts a limit
//
// A cell may keep its quotas in one store and its rates in another ([Config.Rates], [Config.Quotas]). Other cells may
// keep limits, too ([Config.Homes]): a limit that names such a cell as its limit.Limit.Home is counted in that cell's
// store. A rate that this cell keeps for several cells is counted with the quotas, because other cells can reach only
// that store.
//
// Each store is called through its guard ([Guard]), such as a circuit breaker.
//
// # One decision
//
// The stores are asked one after the other: first the home cells, in reverse order of their addition ([New] adds them
// in such an order that they are asked by name), then the store of the cell's quotas, and last the store of its rates.
// A [pair] joins two of these steps: its first part is one store, its second part is everything that is asked after it.
// [Store.Decide] calls in this order:
//
//  1. targetOf finds the topmost pair that the request concerns. If the cell has one store only, it is called directly.
//  2. pair.decide passes the request on if only one of its parts is concerned (partsOf). Otherwise it splits the
//     request (split). A request that only corrects counts goes to both parts at once (correctBoth).
//  3. probeSecond makes sure that the second part answers, if it did not answer the last decision and the request
//     leases from the first.
//  4. decideFirst charges the first part: from an unspent charge (see below), or by a call of its store. If it denies,
//     completeFirstDenial completes the decision.
//  5. The second part decides: the next pair, or the store of the rates. If it admits, join makes one decision of both,
//     and the core settles it.
//  6. If the second part denies or fails, nothing may stay charged in the first part. The charge becomes an unspent
//     charge, or a compensation undoes it: compensateDenial after a denial, returnUnits after an error.
//
// # Unspent charges
//
// If a second part denies or fails, the quotas that the first part was charged are not given back over the network.
// They are kept in memory as an unspent charge, and the next request for the same units spends it. A client that
// hammers against a rate therefore costs the store of the quotas nothing. An unspent charge is refunded after
// [Config.KeepUnspentFor], and at [Store.Close]. When its period ends it is dropped. A process that dies loses its
// unspent charges: too little is admitted, never too much.
//
// While a charge is unspent, decisions may report less of the quota as remaining than there is, by the same amount.
// Nothing is admitted or denied wrongly: before a quota denies, the unspent charges of its owner are refunded.
//
// Charges of a rate are never kept: if they were spent later than they were charged, they would come on top of what the
// rate allows then. They are refunded. An older receipt of a token bucket takes such a refund for a refund of its own
// charge, and then gives back less.
//
// # Requests that lease
//
// A request that leases (limit.Request.Leases) is decided in the same order, and each store leases its own part. If the
// second part then denies:
//
//   - The caller keeps as a lease what was charged to a limit of the first part that the request leases.
//     [limit.Decision.Lease] says so.
//   - What was charged to another limit of the first part, such as an exact quota, is kept as an unspent charge if the
//     request leases nothing of the first part. Otherwise it is refunded after the decision.
//   - Units that the request returned to the first part are charged again, because a denial changes nothing: out of
//     what the request was charged, and for the rest by a second call. If others have been admitted for these units
//     meanwhile, the whole decision is an error, and the units count as returned.
//
// If the second part fails, everything is returned after the decision. Until the second part answers again, it is asked
// before the first part is charged. Units that cannot be returned are lost, and never spent twice.
//
// A store of which nothing is asked, because the caller has leased all units that it needs, need not answer. So leases
// of a store that is away can be spent. The results of such a store are as if its counters had never been used. Another
// cell may be far away: if nothing is asked of its store, it is not called at all, and its results are marked
// [limit.Result.Unasked].
//
// # Corrections
//
// A request that needs and leases nothing corrects what is counted ([limit.LeaseRequest.Correction]). It is the
// exception to all or nothing: every store corrects its part, whatever the others answer. By errors.Is, the error of
// such a request is only what is true of each part: for example, an error that says that nothing was sent is true of
// all parts. After any other error, each part may or may not have been corrected. Units that a correction adds in a
// request that needs something as well are subtracted again if the second part denies, except in buckets. They stay
// counted if the second part fails.
//
// Each store decides by its own clock. A decision over several stores has the time of the last one, which is that of
// the rates if they are concerned, and its leases end by that clock.
package router
