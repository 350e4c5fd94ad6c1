// Package pacer keeps a client under the rate limit of a provider: whoever wants to send a request waits for its turn.
//
// A [Pacer] holds one limit of one provider. [Pacer.Acquire] blocks until the cost of a request may be spent.
// [Pacer.Enqueue] does the same without a goroutine: it takes a place in the queue, and a [Waker] is called later.
//
// # Who is served next
//
// Waiting requests have keys, for example the customers or jobs that they belong to. Requests of one key are served in
// the order in which they came. Keys share the limit by their weights ([Pacer.SetWeight]). The rule is start-time fair
// queueing (Goyal, Vin and Cheng, 1996): each key has a start tag, which advances by cost/weight with every request
// that is served, and the key with the smallest start tag is served next. A key that has not waited for a while starts
// at the tag that is served at present, so it has neither saved up turns nor lost any. While two keys both have
// requests waiting, what they get per weight differs by at most one largest cost of each.
//
// The request that is next is never overtaken, also if its cost does not fit into what is left of the window and a
// smaller one would. So no request waits forever.
//
// # Windows
//
// A limit allows a number of units in each window of the provider. Windows are numbered: window k of a limit with
// period P covers the times from k·P to (k+1)·P since 1970, by the provider's clock. Units belong to a window. What is
// not spent in its window is lost, and a [Permit] that was granted in a window must be used in it, see [Permit.UseBy].
//
// The pacer grants at most Limit.Units in each window, by this machine's clock. [Guard] makes that true by the
// provider's clock, and on arrival at the provider. It leaves out the beginning and the end of each window. That costs
// waiting time, and no units, as long as the rest of the window is long enough to send them.
//
// Within its window, a unit is granted as soon as somebody waits for it, or evenly spread over the window, see
// [Smoothing].
//
// If the wall clock is set, or the machine is suspended, the pacer grants nothing until the next window begins,
// because it cannot know what the provider counted in the present one. A pacer that starts cannot know either what an
// earlier process spent in the present window: it assumes that this was nothing.
//
// # What a provider says
//
// [Pacer.Observe] obeys what replies say about the provider's limits, and can find out a limit that the provider does
// not state ([Learning]). [Transport] does this for an [net/http.Client].
package pacer
