package cell

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
)

// idle is how long a connection to AWS waits for its next use. Go measures it by the time of day, so a process that was frozen
// for longer opens a new one instead of a request that a gateway on the way has forgotten.
const idle = 30 * time.Second

// amazon makes clients of AWS from the environment that Lambda gives a function: there are always a region and credentials in
// it, and they stay for as long as the environment. The SDK's own loader looks for much else and in files; it adds 8 ms to a
// cold start and 1.9 MB.
type amazon struct {
	env    func(string) string
	config aws.Config
}

func newAmazon(env func(string) string) (*amazon, error) {
	a := &amazon{env: env, config: aws.Config{
		Region: env("AWS_REGION"),
		Credentials: given{aws.Credentials{
			AccessKeyID: env("AWS_ACCESS_KEY_ID"), SecretAccessKey: env("AWS_SECRET_ACCESS_KEY"), SessionToken: env("AWS_SESSION_TOKEN"),
			Source: "environment",
		}},
		HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.IdleConnTimeout = idle }),
	}}
	if a.config.Region == "" {
		return nil, errors.New("AWS_REGION is not set, as Lambda does")
	}
	if env("AWS_ACCESS_KEY_ID") == "" || env("AWS_SECRET_ACCESS_KEY") == "" {
		return nil, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, as Lambda does for a function with a role")
	}
	return a, nil
}

// given are credentials that do not change.
type given struct{ aws.Credentials }

// Retrieve implements [aws.CredentialsProvider].
func (g given) Retrieve(context.Context) (aws.Credentials, error) { return g.Credentials, nil }

// endpoint is where a service is, by the variables that every AWS SDK honours; nil for its own place.
func (a *amazon) endpoint(service string) *string {
	if a.env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") == "true" {
		return nil
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_" + service, "AWS_ENDPOINT_URL"} {
		if url := a.env(name); url != "" {
			return &url
		}
	}
	return nil
}

func (a *amazon) dynamodb() *dynamodb.Client {
	return dynamodb.NewFromConfig(a.config, func(o *dynamodb.Options) {
		o.BaseEndpoint = a.endpoint("DYNAMODB")
		o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointState(a.state("AWS_USE_FIPS_ENDPOINT"))
		o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointState(a.state("AWS_USE_DUALSTACK_ENDPOINT"))
	})
}

func (a *amazon) secretsManager() *secretsmanager.Client {
	return secretsmanager.NewFromConfig(a.config, func(o *secretsmanager.Options) {
		o.BaseEndpoint = a.endpoint("SECRETS_MANAGER")
		o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointState(a.state("AWS_USE_FIPS_ENDPOINT"))
		o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointState(a.state("AWS_USE_DUALSTACK_ENDPOINT"))
	})
}

// state is a switch of the SDK: 0 where nothing is said, else on or off.
func (a *amazon) state(name string) uint {
	switch a.env(name) {
	case "true":
		return uint(aws.FIPSEndpointStateEnabled)
	case "false":
		return uint(aws.FIPSEndpointStateDisabled)
	}
	return uint(aws.FIPSEndpointStateUnset)
}
