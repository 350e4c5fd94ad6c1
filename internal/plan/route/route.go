// Package route matches requests to path patterns. It normalises paths so that no other spelling of a path avoids a
// limit, orders patterns by how specific they are, and has an index that finds every matching pattern without
// comparing all of them.
//
// # Readings
//
// The meaning of a request path depends on the server that receives it, and servers differ. "/product;v=2/1" is
// "/product/1" to a servlet container, "//x/product/1" is "/product/1" to a program that resolves it against a base
// URL, "/product//../1" is "/1" if slashes are merged first and "/product/1" if dots are resolved first. If a limiter
// chooses one of these meanings, a client avoids it with the others. A path is therefore normalised to every form that
// a chain of proxies and servers can make of it, and a limit applies if any form matches. [Clean] applies these
// rewrites, in every order and as often as they change something:
//
//   - slashes merged: "/a//b" to "/a/b";
//   - "." and ".." resolved, never above the root, with an empty segment counting as a segment (RFC 3986; where slashes
//     were merged before, there is none);
//   - percent-decoding of everything but "%2F" (servers that split first and decode each segment), or of "%2F" and
//     "%5C" alone (proxies that unescape slashes), and so, one after the other, of everything; repeated, so double
//     encoding ("%252e") is seen through; an invalid escape stays as it is;
//   - parameters of a segment dropped: "/a;x=1/b" to "/a/b";
//   - "\" turned into "/";
//   - the rest dropped from a "?", a "#", a NUL or a ";" (which some servers take for a "?");
//   - a line break at the end dropped, and bytes that are not UTF-8;
//   - a leading "//authority" dropped, and the scheme of an absolute-form target.
//
// In each result slashes are merged, dots resolved and a trailing slash dropped, and equal results are kept once. A
// result with dots or empty segments is kept a second time as it is, with and without a trailing slash, for servers
// that take them for segments: a server that routes "/product/.." or "/product/" to "/product/{id}", with the id ".."
// or an empty one, must not do so uncounted. An ordinary path has one form; a path with a trailing slash has two, and
// neither costs an allocation. A path with an escape such as "%20" has two. The number of forms is bounded: a path
// with more than [MaxReadings] readings, or with readings that are too long together, is [Path.Ambiguous] and matches
// every pattern. A path that is too odd to analyse thus counts against all limits. A gateway may instead refuse it.
//
// The readings are those of a server that receives the path unchanged. A proxy that puts a base path in front adds one
// more reading, in which ".." can lead out of the base path and back in. [Path.Climbs] reports the paths for which
// that is possible.
//
// Matching too many patterns harms only the client that wrote the odd path. There is one exception: if a more specific
// match displaces a wider one (groups), it must do so within one form ([Index.MatchForm]). Otherwise a client chooses
// its limit by adding a form that matches a more generous one.
//
// A list of paths that are allowed needs the opposite: [Index.MatchesEveryForm] requires a matching rule for each
// form.
//
// # What is not covered
//
// Paths are case-sensitive, as in RFC 3986; [Pattern.AnyCase] is for servers that ignore case. Bytes are compared as
// they are: Unicode normalisation, over-long UTF-8, "%uXXXX", encoded white space that a server trims (but a line break
// at the end) and dropped file extensions are not read as equal. A method that a header names (X-HTTP-Method-Override)
// is ignored. GET does not imply HEAD: a rule for both names both.
//
// TestRealServers compares the readings with those of real servers.
package route
