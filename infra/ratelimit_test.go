package infra_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/assertions"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsec2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsecs"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
)

// Guarantees that every change of the rate limit service on Fargate shows as a change of a golden file (a test of
// cmd/sluice checks its flags), and that wrong properties are refused by name.
func TestRateLimitService(t *testing.T) {
	stack := awscdk.NewStack(awscdk.NewApp(&awscdk.AppProps{Outdir: outdir(t)}), jsii.String("sluice-rls"), nil)
	vpc := awsec2.NewVpc(stack, jsii.String("Network"), &awsec2.VpcProps{MaxAzs: jsii.Number(2),
		NatGateways: jsii.Number(1)})
	props := func() *infra.RateLimitServiceProps {
		return &infra.RateLimitServiceProps{
			VPC: vpc, Image: awsecs.ContainerImage_FromRegistry(jsii.String("example.com/sluice:1"), nil),
			Arguments: []string{"--config", "/etc/sluice/limits.yaml", "--redis", "redis.internal:6379", "--redis-tls"},
			Clients:   []awsec2.IPeer{awsec2.Peer_Ipv4(jsii.String("10.0.0.0/16"))},
		}
	}
	for want, change := range map[string]func(*infra.RateLimitServiceProps){
		"VPC is missing":          func(p *infra.RateLimitServiceProps) { p.VPC = nil },
		"Image is missing":        func(p *infra.RateLimitServiceProps) { p.Image = nil },
		"Clients is empty":        func(p *infra.RateLimitServiceProps) { p.Clients = nil },
		"1 instances":             func(p *infra.RateLimitServiceProps) { p.Instances = 1 },
		"Arguments lack --config": func(p *infra.RateLimitServiceProps) { p.Arguments = nil },
	} {
		p := props()
		change(p)
		if _, err := infra.NewRateLimitService(stack, "Bad"+strings.Fields(want)[0], p); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := infra.NewRateLimitService(stack, "RateLimits", props()); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(assertions.Template_FromStack(stack, nil).ToJSON()); err != nil {
		t.Fatal(err)
	}
	golden(t, "ratelimit.template.json", bytes.TrimSpace(b.Bytes()))
}
