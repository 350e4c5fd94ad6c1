// Package resilience keeps decisions coming while a store of counters is slow, refuses calls, fails over or is gone.
//
// [NewChain] builds the store chain of a process, which is everything between a limiter and its counters. A decision
// passes through it in this order:
//
//  1. The fallback limiter ([Fallback]) decides by itself if the stores below do not answer, as each limit's
//     OnStoreFailure says. When they answer again, it replays: it charges them for what it admitted meanwhile.
//  2. The lease layer (package lease) decides from units that were charged ahead, and asks the stores for more.
//  3. The router sends each limit to the store that counts it, and stops calling a store that keeps failing: each store
//     has a circuit breaker ([Breaker]).
//  4. The driver of that store, such as Redis or DynamoDB.
//
// What the fallback limiter admitted is charged below the lease layer, at the router.
//
// The fallback limiter and the lease layer divide limits by the instance count ([Instances]): how many processes share
// a store. The processes find it out from the store itself.
//
// A server's chain counts its instances and gives back spare leases by itself. The chain of a process that is frozen
// between requests ([ChainConfig.Frozen]) does so in [Chain.RunBackgroundTasks], beside a request.
package resilience
