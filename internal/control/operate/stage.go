package operate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Stage is a stage of an API. Its URL is the one that API Gateway gives it, such as
// https://abc123.execute-api.eu-west-1.amazonaws.com/v1.
type Stage struct {
	API    string // the API's id
	Region string // of AWS
	Name   string
}

var (
	stageForm = regexp.MustCompile(`^https://(([a-z0-9]{1,63})\.execute-api\.[a-z0-9.-]+)/([A-Za-z0-9_-]{1,128})/?$`)
	hostForm  = regexp.MustCompile(`^[a-z0-9-]+\.execute-api\.([a-z]+(?:-[a-z]+)+-[0-9]{1,3})\.([a-z0-9.-]+)$`)
)

// partition is a partition of AWS.
type partition struct{ regions, domain string }

// partitions are the partitions of AWS: the beginnings of their regions' names, and the domain of their services. The
// last one has all other regions.
var partitions = []partition{
	{"cn-", "amazonaws.com.cn"},
	{"eusc-", "amazonaws.eu"},
	{"us-iso-", "c2s.ic.gov"},
	{"us-isob-", "sc2s.sgov.gov"},
	{"eu-isoe-", "cloud.adc-e.uk"},
	{"us-isof-", "csp.hci.ic.gov"},
	{"", "amazonaws.com"},
}

// ParseStage reads the URL of a stage. The host must be the one that API Gateway gave the API, not a custom domain.
// Nothing may follow the stage's name but a slash.
func ParseStage(text string) (Stage, error) {
	if part := stageForm.FindStringSubmatch(text); part != nil {
		if region := StageRegion(part[1]); region != "" {
			return Stage{API: part[2], Region: region, Name: part[3]}, nil
		}
	}
	return Stage{}, fmt.Errorf("%.80q is not the URL of an API Gateway stage, such as "+
		"https://abc123.execute-api.eu-west-1.amazonaws.com/v1", text)
}

// StageRegion returns the region in the host name that API Gateway gives an API, or "" for any other host name.
func StageRegion(host string) string {
	part := hostForm.FindStringSubmatch(host)
	if part == nil {
		return ""
	}
	i := slices.IndexFunc(partitions, func(p partition) bool { return strings.HasPrefix(part[1], p.regions) })
	if part[2] != partitions[i].domain { // the last partition has every region
		return ""
	}
	return part[1]
}
