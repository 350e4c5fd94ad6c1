// Package pacer keeps a client under the rate limit of a provider: each request waits until the limit allows it.
//
// A [Pacer] holds one limit of one provider. [Pacer.Acquire] blocks until the cost of a request may be spent.
// [Pacer.Enqueue] does the same without a goroutine: it takes a place in the queue, and a [Waker] is called later.
//
// # Who is served next
//
// Waiting requests have keys, for example the customers or jobs that they belong to. Requests of one key are served in
// the order in which they came. Keys share the limit by their weights ([Pacer.SetWeight]). The rule is start-time fair
// queueing (Goyal, Vin and Cheng, 1996): each key has a start tag, which advances by cost/weight with every request
// that is served, and the key with the smallest start tag is served next. A key that has had no requests for a while
// starts at the tag that is served at present, so it has neither saved up turns nor lost any. While two keys both have
// requests waiting, the units that they get per weight differ by at most the largest cost of each.
//
// No request overtakes the next one. This holds also if the cost of the next request does not fit into the rest of the
// window, and that of a later one does. Therefore no request waits forever.
//
// A request leaves the queue early if the context of [Pacer.Acquire] ends, or by [Pacer.Cancel]: see both in pacer.go.
//
// # Windows
//
// A limit allows a number of units in each window of the provider. Windows are numbered: window k of a limit with
// period P covers the times from k·P to (k+1)·P since 1970, by the provider's clock. Units belong to a window. Units
// that are not spent in their window are lost, and a [Permit] of a window must be used in that window, see
// [Permit.UseBy].
//
// By default, the pacer grants at most Limit.Units in each window by this machine's clock. [Guard] makes that true by
// the provider's clock, and at the time when requests arrive at the provider. It leaves out the beginning and the end
// of each window. This costs waiting time. It costs no units as long as the rest of the window is long enough to send
// them.
//
// Within its window, a unit is granted as soon as a request waits for it, or the units are spread evenly over the
// window, see [Smoothing].
//
// If the wall clock is set, or the machine is suspended, the pacer grants nothing until the next window begins,
// because it cannot know what the provider counted in the present one. A new pacer cannot know what an earlier process
// spent in the present window. It assumes that this was nothing.
//
// # What a provider says
//
// [Pacer.Observe] obeys the limits that replies state. A stated limit holds for all pacers that share the limit
// ([Shared]). [Transport] calls it for each reply to an [net/http.Client].
package pacer
