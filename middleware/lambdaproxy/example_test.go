package lambdaproxy_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/middleware/lambdaproxy"
)

func ExampleWrap() {
	handler := lambdaproxy.Wrap(lambdaproxy.HandlerFunc(func(ctx context.Context, _ []byte) ([]byte, error) {
		who, _ := caller.FromContext(ctx)
		return []byte(`{"statusCode":200,"body":"hello, ` + who.Tenant + `"}`), nil
	}))

	for _, authorizer := range []string{
		`{"lambda":{"decision":"allowed","tenant":"acme","rateLimitRemaining":"41"}}`,
		`{"lambda":{"decision":"limited","tenant":"acme","rateLimitRemaining":"0","retryAfter":"3",` +
			`"problem":"{\"status\":429}"}}`,
	} {
		answer, err := handler.Invoke(context.Background(),
			[]byte(`{"version":"2.0","requestContext":{"authorizer":`+authorizer+`}}`))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.80s…\n", answer)
	}
	// Output:
	// {"statusCode":200,"body":"hello, acme","headers":{"X-RateLimit-Remaining":"41","…
	// {"statusCode":429,"headers":{"Access-Control-Expose-Headers":"RateLimit, RateLim…
}
