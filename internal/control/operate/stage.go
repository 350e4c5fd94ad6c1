package operate

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Stage is a stage of an API. Its URL is the one that API Gateway gives it, such as
// https://abc123.execute-api.eu-west-1.amazonaws.com/v1.
type Stage struct {
	API    string // the API's id
	Region string // of AWS
	Name   string
}

// executeAPI is the part of a host name between the API's id and the region.
const executeAPI = ".execute-api."

// maxURLBytes bounds the URL of a stage. The longest valid URL is far shorter.
const maxURLBytes = 512

// stageForm holds the patterns of ids, regions and names of stages.
var stageForm = struct{ api, region, stage *regexp.Regexp }{
	api:    regexp.MustCompile(`^[a-z0-9]{1,63}$`),
	region: regexp.MustCompile(`^[a-z]+(-[a-z]+)+-[0-9]{1,3}$`),
	stage:  regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`),
}

// partitions are the partitions of AWS: the beginnings of their regions' names, and the domain of their services. The
// last one has all other regions.
var partitions = []struct{ regions, domain string }{
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
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURLBytes || u.Scheme != "https" || u.User != nil || u.RawQuery != "" ||
		u.ForceQuery || strings.Contains(text, "#") {
		return Stage{}, wrongStage(text)
	}
	s := Stage{Region: StageRegion(u.Host), Name: strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), "/"), "/")}
	s.API, _, _ = strings.Cut(u.Host, executeAPI)
	if s.Region == "" || !stageForm.api.MatchString(s.API) || !stageForm.stage.MatchString(s.Name) {
		return Stage{}, wrongStage(text)
	}
	return s, nil
}

func wrongStage(text string) error {
	const example = "https://abc123" + executeAPI + "eu-west-1.amazonaws.com/v1"
	return fmt.Errorf("%.80q is not the URL of an API Gateway stage, such as %s", text, example)
}

// StageRegion returns the region in the host name that API Gateway gives an API, or "" for any other host name.
func StageRegion(host string) string {
	_, rest, _ := strings.Cut(host, executeAPI)
	region, domain, _ := strings.Cut(rest, ".")
	if !stageForm.region.MatchString(region) {
		return ""
	}
	for _, p := range partitions {
		if strings.HasPrefix(region, p.regions) {
			if domain != p.domain {
				return ""
			}
			return region
		}
	}
	return ""
}
