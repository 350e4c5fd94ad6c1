package awsenv_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
)

// env is an environment like Lambda's, with changes as pairs.
func env(pairs ...string) func(string) string {
	all := map[string]string{"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
		"AWS_SECRET_ACCESS_KEY": "k", "AWS_SESSION_TOKEN": "t"}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return all[name] }
}

// Guarantees that clients go where every SDK would go by the same variables, and to another region where they are told.
func TestClients(t *testing.T) {
	for _, tt := range []struct {
		name, region string
		pairs        []string
		want         string // region and endpoint
	}{
		{"AWS", "", nil, "eu-west-1 "},
		{"another region", "us-east-1", nil, "us-east-1 "},
		{"an endpoint", "", []string{"AWS_ENDPOINT_URL", "http://all"}, "eu-west-1 http://all"},
		{"one of the service", "us-east-1", []string{"AWS_ENDPOINT_URL", "http://all", "AWS_ENDPOINT_URL_DYNAMODB",
			"http://db"}, "us-east-1 http://db"},
		{"endpoints ignored", "", []string{"AWS_ENDPOINT_URL", "http://all", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
			"true"}, "eu-west-1 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := awsenv.New(env(tt.pairs...))
			if err != nil {
				t.Fatal(err)
			}
			o := e.DynamoDB(tt.region).Options()
			if got := o.Region + " " + aws.ToString(o.BaseEndpoint); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			c, err := o.Credentials.Retrieve(t.Context())
			if err != nil || c.AccessKeyID != "AKIDEXAMPLE" || c.SessionToken != "t" {
				t.Errorf("credentials %q, %v", c.AccessKeyID, err)
			}
		})
	}
}

// Guarantees that switches of the SDK are honoured.
func TestSwitches(t *testing.T) {
	for fips, wantFIPS := range map[string]aws.FIPSEndpointState{"": aws.FIPSEndpointStateUnset,
		"true": aws.FIPSEndpointStateEnabled, "false": aws.FIPSEndpointStateDisabled} {
		for dual, wantDual := range map[string]aws.DualStackEndpointState{"": aws.DualStackEndpointStateUnset,
			"true": aws.DualStackEndpointStateEnabled, "false": aws.DualStackEndpointStateDisabled} {
			e, err := awsenv.New(env("AWS_USE_FIPS_ENDPOINT", fips, "AWS_USE_DUALSTACK_ENDPOINT", dual))
			if err != nil {
				t.Fatal(err)
			}
			o := e.DynamoDB("").Options().EndpointOptions
			if o.UseFIPSEndpoint != wantFIPS || o.UseDualStackEndpoint != wantDual {
				t.Errorf("FIPS %q, dual stack %q: %+v", fips, dual, o)
			}
		}
	}
}

// Guarantees that what is missing is named, and no value told.
func TestMissing(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if _, err := awsenv.New(env(name, "")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want an error that names %s", err, name)
		}
	}
}

// Guarantees that every client of a function works around the defect of the SDK that PlainBodies describes.
func TestClientsSendPlainBodies(t *testing.T) {
	e, err := awsenv.New(env())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := e.Config("").HTTPClient.(awsenv.PlainBodies); !ok {
		t.Errorf("the HTTP client is a %T, want PlainBodies", e.Config("").HTTPClient)
	}
}
