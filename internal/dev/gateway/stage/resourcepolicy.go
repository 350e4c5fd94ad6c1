package stage

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Denial is a statement of a REST API's resource policy that denies every call except those of the listed callers.
// Exactly one of the lists must not be empty.
type Denial struct {
	Accounts   []string `yaml:"notAccounts"`   // StringNotEquals aws:PrincipalAccount
	Principals []string `yaml:"notPrincipals"` // ArnNotLike aws:PrincipalArn; * matches any text in one part of an ARN
	Addresses  []string `yaml:"notAddresses"`  // NotIpAddress aws:SourceIp: addresses, or networks as in 203.0.113.0/24
}

// denies reports whether the statement denies a call that is signed by the credential and comes from the address.
func (d *Denial) denies(by *Credential, address string) bool {
	switch {
	case len(d.Accounts) > 0:
		return !slices.Contains(d.Accounts, by.Account)
	case len(d.Principals) > 0:
		arn := principalARN(by.UserARN)
		return !slices.ContainsFunc(d.Principals, func(pattern string) bool { return LikeARN(pattern, arn) })
	}
	from, err := netip.ParseAddr(address)
	return err != nil || !slices.ContainsFunc(d.Addresses, func(text string) bool {
		network, err := parseNetwork(text)
		return err == nil && network.Contains(from.Unmap())
	})
}

// principalARN returns the ARN that IAM compares with aws:PrincipalArn. For the session of an assumed role, it is the
// ARN of the role. The ARN of the session does not contain the path of the role, so the result lacks the path.
func principalARN(user string) string {
	parts := strings.SplitN(user, ":", 6)
	if len(parts) == 6 && parts[2] == "sts" {
		if role, ok := strings.CutPrefix(parts[5], "assumed-role/"); ok {
			role, _, _ = strings.Cut(role, "/")
			parts[2], parts[5] = "iam", "role/"+role
		}
	}
	return strings.Join(parts, ":")
}

// LikeARN reports whether an ARN matches a pattern by the rules of the IAM condition ArnLike: each of the six parts is
// matched separately. In the last part, * and ? also match slashes and colons.
func LikeARN(pattern, arn string) bool {
	want, got := strings.SplitN(pattern, ":", 6), strings.SplitN(arn, ":", 6)
	return slices.EqualFunc(want, got, glob)
}

func parseNetwork(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return address.Prefix(address.BitLen())
}

// resourcePolicy checks the statements of the resource policy.
func (c *checker) resourcePolicy() {
	for i := range c.d.ResourcePolicy {
		d, at := &c.d.ResourcePolicy[i], "resourcePolicy["+strconv.Itoa(i)+"]"
		lists := 0
		for _, all := range [][]string{d.Accounts, d.Principals, d.Addresses} {
			lists += min(1, len(all))
		}
		if lists != 1 {
			c.problem(at, "want exactly one of notAccounts, notPrincipals and notAddresses")
		}
		for j, text := range d.Addresses {
			if _, err := parseNetwork(text); err != nil {
				c.problem(fmt.Sprintf("%s.notAddresses[%d]", at, j), "%s is neither an address nor a network",
					shown(text))
			}
		}
	}
	other := func(r Route) bool { return r.Authorization != AWSIAM }
	if len(c.d.ResourcePolicy) > 0 && slices.ContainsFunc(c.d.Routes, other) {
		c.problem("resourcePolicy", "the local gateway evaluates it only if all routes have authorization %s, and "+
			"some have not", AWSIAM)
	}
}
