package config

import "strings"

// regions lists the regions of the commercial partition as of November 2026, and those of China and GovCloud. Add
// regions that AWS has opened since.
var regions = []string{
	"af-south-1", "ap-east-1", "ap-east-2", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1",
	"ap-south-2",
	"ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6",
	"ap-southeast-7",
	"ca-central-1", "ca-west-1", "cn-north-1", "cn-northwest-1", "eu-central-1", "eu-central-2", "eu-north-1",
	"eu-south-1",
	"eu-south-2", "eu-west-1", "eu-west-2", "eu-west-3", "il-central-1", "me-central-1", "me-south-1", "mx-central-1",
	"sa-east-1",
	"us-east-1", "us-east-2", "us-gov-east-1", "us-gov-west-1", "us-west-1", "us-west-2",
}

const china = "aws-cn"

// partition returns the partition of a region. Resources cannot be reached from another partition.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return china
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	default:
		return "aws"
	}
}

// logDays lists the retentions that CloudWatch Logs accepts, up to ten years, in days.
var logDays = []int{1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288,
	3653}
