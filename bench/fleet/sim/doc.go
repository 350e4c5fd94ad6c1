// Package sim simulates many processes of Sluice on one machine, in virtual time: a discrete-event simulation of
// processes that hold the real store chain (lease layer, circuit breaker, fallback limiter, instance count) over one
// simulated Redis, which is the real store in memory behind service times, round trips and a queue for each shard.
//
// # What is real and what is modelled
//
// Real: every line that decides. The chain is made by resilience.NewChain, and its time, waits and random numbers come
// from the simulation ([clock.Runtime]). Modelled: the network (a constant round trip), the processor of Redis (one
// queue per shard, first come, first served, with a constant service time), how requests find a process, and the
// clients. [Costs] are the model's numbers, and docs/scale.md says where they come from.
//
// # Time, and one seed
//
// There is one queue of events, ordered by virtual time in nanoseconds and then by the order in which they were added.
// Nothing reads a clock of the machine, and nothing runs in parallel: a run depends on its scenario and seed alone, and
// its report is the same byte for byte, as long as no fallback limiter runs out of memory.
//
// The real chain waits in the middle of a decision: for the store's answer, or for the call of another request. So
// decisions run in coroutines (see worker). A decision that needs no call runs to its end in the coroutine that handles
// the event, which costs nothing extra; one that waits leaves its coroutine behind until its event comes, and another
// coroutine goes on with the queue.
//
// # The judge
//
// Package judge counts what was admitted of each limit and window with arithmetic of its own, by the simulation's true
// time. It knows nothing of the core, of leases, or of the skewed clocks of processes.
package sim
