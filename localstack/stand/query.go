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
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const maxAnswer = 16 << 20 // bytes; longer than any answer that is expected

// query calls a service with AWS's query protocol, whose answers are XML. The stand uses it for a few calls of EC2, STS
// and CloudFormation, because the SDK's package for EC2 alone takes a minute and a half to compile.
func (s *Stand) query(ctx context.Context, service, region string, form url.Values, answer any) error {
	credentials, err := s.AWS(region).Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	body := []byte(form.Encode())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	sum := sha256.Sum256(body)
	err = v4.NewSigner().SignHTTP(ctx, credentials, r, hex.EncodeToString(sum[:]), service, region, time.Now())
	if err != nil {
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

// skippedReason is in LocalStack's event about a resource whose type it does not know. It creates nothing, and reports
// success.
const skippedReason = "is not supported but was deployed as a fallback"

// Skipped returns the types of resources that LocalStack did not create although it reported success.
func (s *Stand) Skipped(ctx context.Context) (map[string]bool, error) {
	types := map[string]bool{}
	stacks := map[string]string{controlStack: s.deployed.control}
	for _, c := range s.deployed.cells {
		stacks["sluice-cell-"+c.ID] = c.Region
	}
	for stack, region := range stacks {
		form := url.Values{"Action": {"DescribeStackEvents"}, "Version": {"2010-05-15"}, "StackName": {stack}}
		for more := true; more; {
			var answer struct {
				Events []struct {
					Type   string `xml:"ResourceType"`
					Reason string `xml:"ResourceStatusReason"`
				} `xml:"DescribeStackEventsResult>StackEvents>member"`
				Next string `xml:"DescribeStackEventsResult>NextToken"`
			}
			if err := s.query(ctx, "cloudformation", region, form, &answer); err != nil {
				return nil, err
			}
			if len(answer.Events) == 0 {
				return nil, fmt.Errorf("the stack %s has no events", stack)
			}
			for _, e := range answer.Events {
				if strings.Contains(e.Reason, skippedReason) {
					types[e.Type] = true
				}
			}
			more = answer.Next != ""
			form.Set("NextToken", answer.Next)
		}
	}
	return types, nil
}
