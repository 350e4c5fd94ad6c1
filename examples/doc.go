// Package examples is a module of its own: programs to copy, each of which puts Sluice in front of a router. The
// routers are therefore no dependencies of Sluice.
package examples
