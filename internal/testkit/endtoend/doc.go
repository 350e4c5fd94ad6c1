// Package endtoend holds what is true of Sluice as it is deployed: a client's HTTP request, the local API Gateway, the
// real Lambda binary in several environments, its stores, and a backend with our middleware. Only its tests do
// anything.
package endtoend
