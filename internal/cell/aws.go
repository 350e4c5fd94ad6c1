package cell

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/internal/awsenv"
)

// amazon makes the clients of AWS.
type amazon struct{ *awsenv.Env }

func newAmazon(env func(string) string) (*amazon, error) {
	e, err := awsenv.New(env)
	if err != nil {
		return nil, err
	}
	return &amazon{e}, nil
}

func (a *amazon) dynamodb() *dynamodb.Client { return a.DynamoDB("") }

func (a *amazon) secretsManager() *secretsmanager.Client {
	return secretsmanager.NewFromConfig(a.Config(""), func(o *secretsmanager.Options) {
		o.BaseEndpoint = a.Endpoint("SECRETS_MANAGER")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = a.FIPS(), a.DualStack()
	})
}
