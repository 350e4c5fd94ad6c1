// Package examples has programs to copy, most of which use Sluice with an HTTP router. It is a module of its own, so
// that Sluice does not depend on the routers.
package examples
