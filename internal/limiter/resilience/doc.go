// Package resilience keeps decisions coming while a store of counters is slow, refuses calls, fails over or is gone.
//
// [NewChain] builds the store chain of a process, which is everything between a limiter and its counters. A decision
// passes through it in this order:
//
//  1. The fallback limiter ([Fallback]) decides by itself if the stores below do not answer, as each limit's
//     OnStoreFailure says. When they answer again, it replays: it charges them for what it admitted meanwhile.
//  2. The lease layer (package lease) decides from units that were charged ahead, and asks the stores for more.
//  3. The router sends each limit to the store that counts it. Each store has a circuit breaker (package breaker),
//     which stops the calls of a store that keeps failing.
//  4. The driver of that store, such as Redis or DynamoDB.
//
// # A call that fails
//
// [Fallback.Decide] passes the request down. If the store's call fails, this happens:
//
//  1. [breaker.Breaker.Do], around the call, counts the failure. After too many (count) the breaker opens (settle).
//     While it is open, Do makes no call and returns [breaker.ErrOpen] at once. After the cooldown, one call at a time
//     is made as a probe. A success closes the breaker.
//  2. The error comes back through the router and the lease layer to Fallback.Decide. If it concerns the caller only,
//     such as an invalid cost, it is returned (decidesWithoutStore). What the client is told after an error, and when
//     to try again, is decided by the caller: see charge in package authorizer.
//  3. Otherwise noteFailure counts and logs the failure, and decideAlone decides. chooseCharges takes this instance's
//     part of each limit (partOf), or denies if a limit is closed. fillResults charges those parts in a store in
//     memory. The decision is marked Degraded.
//  4. If the request was admitted, addPending keeps its units for the replay (pendingCharges).
//  5. After a later decision that succeeds, noteAnswer starts the replay (startReplay, replayAll): it probes each store
//     (probe) and charges the pending units there (send). Replay requests go to the router, past the lease layer.
//
// # Instances
//
// The fallback limiter and the lease layer divide limits by the instance count ([Instances]): how many processes share
// a store. The processes find it out from the store itself.
//
// A server's chain counts its instances and gives back spare leases by itself. The chain of a process that is frozen
// between requests ([ChainConfig.Frozen]) does so in [Chain.RunBackgroundTasks], in the background of a request.
package resilience
