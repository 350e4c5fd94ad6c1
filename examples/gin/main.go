// Command gin limits the tenants of an API that is served by github.com/gin-gonic/gin.
//
//	go run ./gin
//	curl -i -H 'Tenant: acme' http://127.0.0.1:8080/product/1
package main

import (
	"context"
	"errors"
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

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
	router := gin.New()
	router.GET("/healthz", func(c *gin.Context) { c.Status(http.StatusOK) }) // not limited: it has no tenant
	limited := router.Group("/", wrap(middleware.Limit(limiter, middleware.WithIdentity(identify))))
	limited.GET("/product/:id", product)
	return router
}

// wrap makes gin's kind of middleware of the standard library's. Gin has such a function for handlers only.
func wrap(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		admitted := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			admitted = true
			c.Request = r // its context has the caller
			c.Next()
		})
		limit(next).ServeHTTP(c.Writer, c.Request)
		if !admitted {
			c.Abort() // the limiter has answered
		}
	}
}

// identify stands for your own authentication: it says on whose account a request is.
func identify(r *http.Request) (sluice.Identity, error) {
	tenant := r.Header.Get("Tenant")
	if tenant == "" {
		return sluice.Identity{}, errors.New("no tenant")
	}
	return sluice.Identity{Tenant: tenant}, nil
}

func product(c *gin.Context) {
	caller, _ := middleware.FromContext(c.Request.Context())
	c.String(http.StatusOK, "hello, %s\n", caller.Tenant)
}
