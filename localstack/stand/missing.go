package stand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
)

// lacks notes that the endpoint does not behave like AWS in the described way, unless that is noted already.
func (s *Stand) lacks(format string, args ...any) {
	if what := fmt.Sprintf(format, args...); !slices.Contains(s.missing, what) {
		s.missing = append(s.missing, what)
	}
}

// findMissing checks whether the endpoint creates every resource of a template, and whether it enforces IAM policies.
// It notes what is missing.
func (s *Stand) findMissing(ctx context.Context) error {
	skipped, err := s.Skipped(ctx)
	if err != nil {
		return err
	}
	if len(skipped) > 0 {
		s.lacks("CloudFormation makes no resources of these types: %s", strings.Join(slices.Sorted(maps.Keys(skipped)),
			", "))
	}
	// The operator has no policy, so IAM denies this call.
	list := url.Values{"Action": {"ListUsers"}, "Version": {"2010-05-08"}}
	if s.queryAs(ctx, s.Operator.Credentials, "iam", iamRegion, list, &struct{}{}) == nil {
		s.lacks("IAM denies nothing: a user without policies may list users")
	}
	return nil
}

// secretStore is Secrets Manager in one region.
type secretStore interface {
	DescribeSecret(context.Context, *secretsmanager.DescribeSecretInput, ...func(*secretsmanager.Options)) (
		*secretsmanager.DescribeSecretOutput, error)
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (
		*secretsmanager.GetSecretValueOutput, error)
	CreateSecret(context.Context, *secretsmanager.CreateSecretInput, ...func(*secretsmanager.Options)) (
		*secretsmanager.CreateSecretOutput, error)
	PutSecretValue(context.Context, *secretsmanager.PutSecretValueInput, ...func(*secretsmanager.Options)) (
		*secretsmanager.PutSecretValueOutput, error)
}

const (
	replicationTimeout  = 30 * time.Second // until a replica has the new value of a secret
	replicationInterval = 500 * time.Millisecond
)

// copySecret makes a region have the secret with the given value. If the region has a replica of the secret, which
// cannot be written, copySecret waits until the endpoint has copied the value there, and returns true. Otherwise it
// writes a secret there.
func copySecret(ctx context.Context, there secretStore, name, value string) (replicated bool, err error) {
	of, err := there.DescribeSecret(ctx, &secretsmanager.DescribeSecretInput{SecretId: &name})
	var none *types.ResourceNotFoundException
	switch {
	case errors.As(err, &none):
		_, err = there.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: &name, SecretString: &value})
		return false, err
	case err != nil:
		return false, err
	case of.PrimaryRegion == nil:
		_, err = there.PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: &name, SecretString: &value})
		return false, err
	}
	return true, Until(ctx, replicationTimeout, replicationInterval, func(ctx context.Context) error {
		held, err := there.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &name})
		if err == nil && aws.ToString(held.SecretString) != value {
			err = errors.New("the replica has an older value")
		}
		return err
	})
}
