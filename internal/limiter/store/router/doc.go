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
// The stores have an order: that of the rates, that of the cell's quotas, those of the home cells. If one store counts
// all limits of a request, [Store.Decide] only calls that store. Otherwise it does this:
//
//  1. It makes a part of the request for each store (split). A part of which nothing is asked, because the caller has
//     leased all units that it needs, needs no call: its results are as if its counters had never been used, and are
//     marked [limit.Result.Unasked]. So leases of a store that is away can be spent.
//  2. It charges the parts in the order of their stores (splitRequest.decide). Nearly all denials are by rates, so a
//     request that is denied has nearly always charged nothing yet.
//  3. If a part denies or fails, the parts that were charged before it are undone (part.undo): leased units are
//     returned, other units are refunded by their receipt. The decision waits for that. Meanwhile a request of the same
//     owner may be denied for lack of these units. If they cannot be taken back, or if the process dies before, they
//     are lost, and never spent twice.
//  4. The parts that were not called are read, so that a denial names a wait after which all limits have room (refuse).
//     If any part denies, the decision is a denial, also if others fail: after an error, a fallback limiter might admit
//     the request. If the decision is an error, the stores that were not called still make the corrections of their
//     parts, and charge nothing.
//  5. If all parts admit the request, one decision is made of theirs (join).
//
// An undone charge must leave no trace. In a token bucket it would: older receipts of the bucket give back less
// afterwards. And corrections that a request makes ([limit.LeaseRequest.Correction]), such as leased units that it
// gives back, cannot be undone, since others may have been admitted for these units. If a part other than the last one
// has either (part.leavesTrace), all parts but the first are read before step 2, and a request that one of them denies
// charges nothing. If a part denies all the same, because others have charged it in between, a bucket is refunded, and
// after a correction the decision is an error.
//
// # Requests that only correct
//
// A request that needs and leases nothing corrects what is counted. It is the exception to all or nothing: every store
// corrects its part, whatever the others answer (correct). By errors.Is, the error of such a request is only what is
// true of each part: for example, an error that says that nothing was sent is true of all parts. After any other error,
// each part may or may not have been corrected.
//
// # Clocks
//
// Each store decides by its own clock. A decision over several stores has the time of the first of them that was asked
// and has answered. The ends of its leases and its waits are given by that clock.
package router
