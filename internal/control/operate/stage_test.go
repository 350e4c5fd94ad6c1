package operate_test

import (
	"github.com/sluicelimits/sluice/internal/control/operate"
	"strings"
	"testing"
)

// Guarantees that nothing but a URL of API Gateway's own is taken for one: signed calls go there.
func TestParseStage(t *testing.T) {
	for text, want := range map[string]operate.Stage{
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1":  {API: "abc", Region: "eu-west-1", Name: "v1"},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1/": {API: "abc", Region: "eu-west-1", Name: "v1"},
		"https://0.execute-api.ap-southeast-2.amazonaws.com/my_S-2": {API: "0", Region: "ap-southeast-2",
			Name: "my_S-2"},
		"https://abc.execute-api.us-gov-west-1.amazonaws.com/v1":   {API: "abc", Region: "us-gov-west-1", Name: "v1"},
		"https://abc.execute-api.cn-north-1.amazonaws.com.cn/v1":   {API: "abc", Region: "cn-north-1", Name: "v1"},
		"https://abc.execute-api.eusc-de-east-1.amazonaws.eu/v1":   {API: "abc", Region: "eusc-de-east-1", Name: "v1"},
		"https://abc.execute-api.us-iso-east-1.c2s.ic.gov/v1":      {API: "abc", Region: "us-iso-east-1", Name: "v1"},
		"https://abc.execute-api.us-isob-east-1.sc2s.sgov.gov/v1":  {API: "abc", Region: "us-isob-east-1", Name: "v1"},
		"https://abc.execute-api.eu-isoe-west-1.cloud.adc-e.uk/v1": {API: "abc", Region: "eu-isoe-west-1", Name: "v1"},
		"https://abc.execute-api.us-isof-south-1.csp.hci.ic.gov/v1": {API: "abc", Region: "us-isof-south-1",
			Name: "v1"},

		"http://abc.execute-api.eu-west-1.amazonaws.com/v1":                               {},
		"HTTPS://evil.example/abc.execute-api.eu-west-1.amazonaws.com/":                   {},
		"https://abc.execute-api.eu-west-1.amazonaws.com":                                 {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/":                                {},
		"https://abc.execute-api.eu-west-1.amazonaws.com//v1":                             {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1//":                            {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1/tenants":                      {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1/../x":                         {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/..":                              {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/%76%31":                          {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1%2f":                           {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1?":                             {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1?a=b":                          {},
		"https://abc.execute-api.eu-west-1.amazonaws.com/v1#":                             {},
		"https://abc.execute-api.eu-west-1.amazonaws.com:443/v1":                          {},
		"https://abc.execute-api.eu-west-1.amazonaws.com:8443/v1":                         {},
		"https://abc.execute-api.eu-west-1.amazonaws.com./v1":                             {},
		"https://u:p@abc.execute-api.eu-west-1.amazonaws.com/v1":                          {},
		"https://abc.execute-api.eu-west-1.amazonaws.com@evil.org/v1":                     {},
		"https://abc.execute-api.eu-west-1.amazonaws.com.evil.org/v1":                     {},
		"https://abc.execute-api.eu-west-1.evil.org/v1":                                   {},
		"https://abc.execute-api.evil.org/v1":                                             {},
		"https://abc.execute-api.evil.org/.eu-west-1.amazonaws.com/v1":                    {},
		"https://evil.org/.execute-api.eu-west-1.amazonaws.com/v1":                        {},
		"https://evil.org\\.execute-api.eu-west-1.amazonaws.com/v1":                       {},
		"https://evil.org%2f.execute-api.eu-west-1.amazonaws.com/v1":                      {},
		"https://a.b.execute-api.eu-west-1.amazonaws.com/v1":                              {},
		"https://.execute-api.eu-west-1.amazonaws.com/v1":                                 {},
		"https://a.execute-api.x-1.execute-api.eu-west-1.amazonaws.com/v1":                {},
		"https://ABC.execute-api.eu-west-1.amazonaws.com/v1":                              {},
		"https://ab\u017f.execute-api.eu-west-1.amazonaws.com/v1":                         {},
		"https://abc.execute-api.cn-north-1.amazonaws.com/v1":                             {},
		"https://abc.execute-api.eu-west-1.amazonaws.com.cn/v1":                           {},
		"https://abc.execute-api.us-iso-east-1.amazonaws.com/v1":                          {},
		"https://abc.execute-api.eu-west.amazonaws.com/v1":                                {},
		"https://127.0.0.1/v1":                                                            {},
		"https://api.example.com":                                                         {},
		"":                                                                                {},
		"https://" + strings.Repeat("a", 600) + ".execute-api.eu-west-1.amazonaws.com/v1": {},
	} {
		got, err := operate.ParseStage(text)
		if got != want || (err == nil) != (want.API != "") {
			t.Errorf("ParseStage(%.120q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// Guarantees that a region is read only from a host name that API Gateway gave.
func TestRegion(t *testing.T) {
	for host, want := range map[string]string{
		"abc.execute-api.eu-west-1.amazonaws.com":             "eu-west-1",
		"abc-vpce-0f1e.execute-api.eu-west-1.amazonaws.com":   "eu-west-1",
		"abc.execute-api.cn-northwest-1.amazonaws.com.cn":     "cn-northwest-1",
		"abc.execute-api.eu-west-1.amazonaws.com.example.com": "",
		"api.example.com": "", "": "", "execute-api.eu-west-1.amazonaws.com": "",
	} {
		if got := operate.StageRegion(host); got != want {
			t.Errorf("Region(%q) = %q, want %q", host, got, want)
		}
	}
}
