// Package limiter is the folder of everything that decides whether units may be spent.
//
// Package limit is the pure core. The stores in store count. Package lease wraps a store and decides most requests
// without calling it. Package resilience keeps decisions coming while a store is away. Below them stand tools for a
// process that may be frozen between requests: clock, singleflight, and refresh for values that are read over a
// network.
package limiter
