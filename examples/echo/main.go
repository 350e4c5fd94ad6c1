// Command echo limits the tenants of an API that is served by github.com/labstack/echo.
//
//	go run ./echo
//	curl -i -H 'Tenant: acme' http://127.0.0.1:8080/product/1
package main

import (
	"context"
	"errors"
	"log"
	"net/http"

	"github.com/labstack/echo/v4"

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
	router := echo.New()
	// not limited: it has no tenant
	router.GET("/healthz", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	limited := router.Group("", echo.WrapMiddleware(middleware.Limit(limiter, middleware.WithIdentity(identify))))
	limited.GET("/product/:id", product)
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

func product(c echo.Context) error {
	caller, _ := middleware.FromContext(c.Request().Context())
	return c.String(http.StatusOK, "hello, "+caller.Tenant+"\n")
}
