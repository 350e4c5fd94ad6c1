// Command nethttp limits the tenants of an API that is an http.Handler.
//
//	go run ./nethttp
//	curl -i -H 'Tenant: acme' http://127.0.0.1:8080/product/1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/middleware"
)

func main() { log.Fatal(serve()) }

func serve() error {
	listen := flag.String("listen", "127.0.0.1:8080", "`address` to listen on")
	flag.Parse()
	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans/two-plans.yaml"}}) // read again when it changes
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close(context.Background()) }()
	log.Printf("try: curl -i -H 'Tenant: acme' http://%s/product/1", *listen)
	err = http.ListenAndServe(*listen, handler(limiter)) //nolint:gosec // an example: set timeouts
	return fmt.Errorf("%w (the flag -listen chooses another address)", err)
}

func handler(limiter *sluice.Limiter) http.Handler {
	limit := middleware.Limit(limiter, middleware.WithIdentity(identify)) // identify says on whose account a request is
	mux := http.NewServeMux()
	mux.Handle("GET /product/{id}", limit(http.HandlerFunc(product)))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {}) // not limited: it has no tenant
	return mux
}

// identify stands for your own authentication.
func identify(r *http.Request) (sluice.Identity, error) {
	tenant := r.Header.Get("Tenant")
	if tenant == "" {
		return sluice.Identity{}, errors.New("no tenant")
	}
	return sluice.Identity{Tenant: tenant}, nil
}

func product(w http.ResponseWriter, r *http.Request) {
	caller, _ := middleware.FromContext(r.Context())
	fmt.Fprintf(w, "hello, %s\n", caller.Tenant)
}
