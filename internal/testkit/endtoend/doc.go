// Package endtoend contains only tests. They test Sluice as it is deployed: a client's HTTP request goes through the
// local API Gateway and the real Lambda binary, in several environments and with its stores, to a backend with our
// middleware.
package endtoend
