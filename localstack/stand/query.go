package stand

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const maxAnswer = 16 << 20 // bytes; longer than any answer that is expected

// query calls a service with AWS's query protocol, whose answers are XML. The stand uses it for a few calls of EC2, IAM
// and CloudFormation, because the SDK's package for EC2 alone takes a minute and a half to compile.
func (s *Stand) query(ctx context.Context, service, region string, form url.Values, answer any) error {
	config := s.AWS(region)
	credentials, err := config.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	return s.queryAs(ctx, credentials, service, region, form, answer)
}

// queryAs is like [Stand.query], but with the given credentials.
func (s *Stand) queryAs(
	ctx context.Context, as aws.Credentials, service, region string, form url.Values, answer any,
) error {
	body := []byte(form.Encode())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, as, r, hex.EncodeToString(sum[:]), service, region, time.Now()); err != nil {
		return err
	}
	said, err := s.client.Do(r)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", form.Get("Action"), service, err)
	}
	defer func() { _ = said.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(said.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", form.Get("Action"), service, err)
	}
	if said.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s: %.500s", form.Get("Action"), service, said.Status, bytes.TrimSpace(text))
	}
	if err := xml.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s of %s: %w", form.Get("Action"), service, err)
	}
	return nil
}

// subnets returns the default VPC of the region, which LocalStack has in each region, and two of its subnets in
// different zones.
func (s *Stand) subnets(ctx context.Context, region string) (vpc string, subnets []string, err error) {
	var answer struct {
		Subnets []struct {
			ID   string `xml:"subnetId"`
			VPC  string `xml:"vpcId"`
			Zone string `xml:"availabilityZone"`
		} `xml:"subnetSet>item"`
	}
	form := url.Values{"Action": {"DescribeSubnets"}, "Version": {"2016-11-15"}, "Filter.1.Name": {"default-for-az"},
		"Filter.1.Value.1": {"true"}}
	if err := s.query(ctx, "ec2", region, form, &answer); err != nil {
		return "", nil, err
	}
	zones := map[string]bool{}
	for _, n := range answer.Subnets {
		if (vpc == "" || n.VPC == vpc) && !zones[n.Zone] && len(subnets) < 2 {
			zones[n.Zone], vpc, subnets = true, n.VPC, append(subnets, n.ID)
		}
	}
	if len(subnets) < 2 {
		return "", nil, fmt.Errorf("%s has no default VPC with subnets in two zones", region)
	}
	return vpc, subnets, nil
}

// operator creates the IAM user that calls the operators' APIs if it does not exist, and a new access key for it.
func (s *Stand) operator(ctx context.Context) error {
	var user struct {
		ID  string `xml:"GetUserResult>User>UserId"`
		ARN string `xml:"GetUserResult>User>Arn"`
	}
	get := url.Values{"Action": {"GetUser"}, "Version": {"2010-05-08"}, "UserName": {operatorName}}
	if err := s.query(ctx, "iam", iamRegion, get, &user); err != nil {
		form := url.Values{"Action": {"CreateUser"}, "Version": {"2010-05-08"}, "UserName": {operatorName}}
		if err := s.query(ctx, "iam", iamRegion, form, &struct{}{}); err != nil {
			return err
		}
		if err := s.query(ctx, "iam", iamRegion, get, &user); err != nil {
			return err
		}
	}
	if err := s.deleteOldestKey(ctx); err != nil {
		return err
	}
	var key struct {
		ID     string `xml:"CreateAccessKeyResult>AccessKey>AccessKeyId"`
		Secret string `xml:"CreateAccessKeyResult>AccessKey>SecretAccessKey"`
	}
	form := url.Values{"Action": {"CreateAccessKey"}, "Version": {"2010-05-08"}, "UserName": {operatorName}}
	if err := s.query(ctx, "iam", iamRegion, form, &key); err != nil {
		return err
	}
	if user.ID == "" || user.ARN == "" || key.ID == "" || key.Secret == "" {
		return fmt.Errorf("IAM returned no user %s with an access key", operatorName)
	}
	s.Operator = Operator{ARN: user.ARN, ID: user.ID, Credentials: aws.Credentials{AccessKeyID: key.ID,
		SecretAccessKey: key.Secret}}
	return nil
}

// maxKeys is how many access keys IAM allows a user.
const maxKeys = 2

// deleteOldestKey deletes the operator's oldest access key if the operator has as many as IAM allows. That happens
// because each Deploy and each Attach creates one.
func (s *Stand) deleteOldestKey(ctx context.Context) error {
	var answer struct {
		Keys []struct {
			ID   string    `xml:"AccessKeyId"`
			Made time.Time `xml:"CreateDate"`
		} `xml:"ListAccessKeysResult>AccessKeyMetadata>member"`
	}
	list := url.Values{"Action": {"ListAccessKeys"}, "Version": {"2010-05-08"}, "UserName": {operatorName}}
	if err := s.query(ctx, "iam", iamRegion, list, &answer); err != nil || len(answer.Keys) < maxKeys {
		return err
	}
	oldest := answer.Keys[0]
	for _, k := range answer.Keys {
		if k.Made.Before(oldest.Made) {
			oldest = k
		}
	}
	remove := url.Values{"Action": {"DeleteAccessKey"}, "Version": {"2010-05-08"}, "UserName": {operatorName},
		"AccessKeyId": {oldest.ID}}
	return s.query(ctx, "iam", iamRegion, remove, &struct{}{})
}

// Event is an event of a stack: what happened to one of its resources.
type Event struct {
	Logical, Type, Status, Reason string
}

// events returns the events of a stack, newest first.
func (s *Stand) events(ctx context.Context, region, stack string) ([]Event, error) {
	var all []Event
	form := url.Values{"Action": {"DescribeStackEvents"}, "Version": {"2010-05-15"}, "StackName": {stack}}
	for {
		var answer struct {
			Events []struct {
				Logical string `xml:"LogicalResourceId"`
				Type    string `xml:"ResourceType"`
				Status  string `xml:"ResourceStatus"`
				Reason  string `xml:"ResourceStatusReason"`
			} `xml:"DescribeStackEventsResult>StackEvents>member"`
			Next string `xml:"DescribeStackEventsResult>NextToken"`
		}
		if err := s.query(ctx, "cloudformation", region, form, &answer); err != nil {
			return nil, err
		}
		for _, e := range answer.Events {
			all = append(all, Event(e))
		}
		if answer.Next == "" {
			return all, nil
		}
		form.Set("NextToken", answer.Next)
	}
}
