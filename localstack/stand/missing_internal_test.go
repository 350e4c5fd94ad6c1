package stand

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
)

// region is a stand-in for Secrets Manager that has a secret, or none, or a replica that cannot be written.
type region struct {
	value   string // "": none
	replica bool
	arrives time.Time // for a replica: when it has the new value
	next    string
}

func (r *region) DescribeSecret(
	context.Context, *secretsmanager.DescribeSecretInput, ...func(*secretsmanager.Options),
) (
	*secretsmanager.DescribeSecretOutput, error) {
	if r.value == "" {
		return nil, &types.ResourceNotFoundException{}
	}
	out := &secretsmanager.DescribeSecretOutput{}
	if r.replica {
		primary := "eu-west-1"
		out.PrimaryRegion = &primary
	}
	return out, nil
}

func (r *region) GetSecretValue(
	context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options),
) (
	*secretsmanager.GetSecretValueOutput, error) {
	if r.replica && !time.Now().Before(r.arrives) {
		r.value = r.next
	}
	return &secretsmanager.GetSecretValueOutput{SecretString: &r.value}, nil
}

func (r *region) CreateSecret(
	_ context.Context, in *secretsmanager.CreateSecretInput, _ ...func(*secretsmanager.Options),
) (
	*secretsmanager.CreateSecretOutput, error) {
	r.value = *in.SecretString
	return &secretsmanager.CreateSecretOutput{}, nil
}

func (r *region) PutSecretValue(
	_ context.Context, in *secretsmanager.PutSecretValueInput, _ ...func(*secretsmanager.Options),
) (
	*secretsmanager.PutSecretValueOutput, error) {
	if r.replica {
		return nil, &types.InvalidRequestException{}
	}
	r.value = *in.SecretString
	return &secretsmanager.PutSecretValueOutput{}, nil
}

// Guarantees that each region gets the secret's value, whether the endpoint makes replicas or not, and that the test
// waits for a replica, which AWS does not let anybody write.
func TestCopySecret(t *testing.T) {
	for name, tt := range map[string]struct {
		there      *region
		replicated bool
		never      bool
	}{
		"no secret":         {&region{}, false, false},
		"our copy":          {&region{value: "old"}, false, false},
		"a replica":         {&region{value: "new", replica: true, next: "new"}, true, false},
		"a late replica":    {&region{value: "old", replica: true, next: "new"}, true, false},
		"an absent replica": {&region{value: "old", replica: true, next: "old"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.there.arrives = time.Now().Add(3 * time.Second)
				replicated, err := copySecret(t.Context(), tt.there, "sluice-identity", "new")
				if replicated != tt.replicated || errors.Is(err, ErrNever) != tt.never || err != nil && !tt.never {
					t.Fatalf("CopySecret = %t, %v", replicated, err)
				}
				if err == nil && tt.there.value != "new" {
					t.Errorf("the region has the secret %q", tt.there.value)
				}
			})
		})
	}
}
