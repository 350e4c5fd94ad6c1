// Package route matches requests to path patterns: normalisation that an alias cannot escape, specificity, and an index
// that finds every matching pattern without looking at all of them.
//
// # Readings
//
// A request path means what the server behind us takes it to mean, and servers differ. "/product;v=2/1" is "/product/1"
// to a servlet container, "//x/product/1" is "/product/1" to whoever resolves it against a base URL, "/product//../1"
// is "/1" after merging slashes and "/product/1" before. A limiter that settles on one of these can be walked around
// through the others. So a path is not normalised to one form but to all that a chain of proxies and servers can make
// of it, and what any form hits applies. [Clean] applies these rewrites, in every order and as often as they change
// something:
//
//   - slashes merged: "/a//b" to "/a/b";
//   - "." and ".." resolved, never above the root, with an empty segment counting as a segment (RFC 3986; where slashes
//     were merged before, there is none);
//   - percent-decoding of everything but "%2F" (servers that split first and decode each segment), or of "%2F" and
//     "%5C" alone (proxies that unescape slashes), and so, one after the other, of everything; repeated, so double
//     encoding ("%252e") is seen through; an invalid escape stays as it is;
//   - parameters of a segment dropped: "/a;x=1/b" to "/a/b";
//   - "\" turned into "/";
//   - the rest dropped from a "?", a "#" or a NUL;
//   - a leading "//authority" dropped, and the "scheme://authority" of an absolute-form target.
//
// Each result has its slashes merged, its dots resolved and its trailing slash dropped, and equal ones are kept once. A
// result with dots is kept a second time with the dots as they are, for gateways that do not resolve them: one that
// routes "/product/.." to "/product/{id}" with the id ".." must not do so uncounted. A usual path has one form and
// costs no allocation; one with an escape such as "%20" has two. The set is bounded: a path that has more than
// [MaxReadings] readings, or long ones in number, is [Path.Ambiguous], and matches every pattern there is. So no path
// escapes a limit by being too odd to analyse: it pays for all of them. A gateway may as well refuse it.
//
// The readings are those of a server that gets the path as it is. A proxy that puts a base path in front adds one more:
// there ".." can lead out of the base path and back in. [Path.Climbs] finds the paths with which it can.
//
// Matching too much costs only the client that wrote the odd path. One thing needs care: where a more specific match
// displaces a wider one (groups), displacing must happen within one form ([Index.MatchForm]), or a client would pick
// its limit by adding a form that hits a more generous one.
//
// The other way round it is for lists of paths that are let in: there [Index.MatchesEveryForm] wants a rule for each
// form.
//
// # What is not covered
//
// Paths are case-sensitive, as in RFC 3986; for a server that ignores case there is [Pattern.AnyCase].
// Bytes are compared as they are: Unicode normalisation, over-long UTF-8, "%uXXXX", trimmed white space and dropped
// file extensions are not read as equal. A segment for "*" is never empty. A method named in a header
// (X-HTTP-Method-Override) is not looked at. HEAD is not implied by GET: a rule that means both names both.
package route
