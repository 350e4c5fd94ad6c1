// Command chi limits the tenants of an API that is served by github.com/go-chi/chi.
//
//	go run ./chi
//	curl -i -H 'Tenant: acme' http://127.0.0.1:8080/product/1
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/middleware"
)

func main() { log.Fatal(serve()) }

func serve() error {
	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans/two-plans.yaml"}}) // read again when it changes
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close(context.Background()) }()
	log.Print("try: curl -i -H 'Tenant: acme' http://127.0.0.1:8080/product/1")
	return http.ListenAndServe("127.0.0.1:8080", handler(limiter)) //nolint:gosec // an example: set timeouts
}

func handler(limiter *sluice.Limiter) http.Handler {
	router := chi.NewRouter()
	router.Get("/healthz", func(http.ResponseWriter, *http.Request) {}) // not limited: it has no tenant
	router.Group(func(limited chi.Router) {
		limited.Use(middleware.Limit(limiter, middleware.WithIdentity(identify)))
		limited.Get("/product/{id}", product)
	})
	return router
}

// identify stands for your own authentication: it says on whose account a request is.
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
