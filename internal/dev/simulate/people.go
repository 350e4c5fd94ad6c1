package simulate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// maxPeople bounds how many tenants, and how many addresses, are counted individually.
const maxPeople = 100_000

// The statuses of tenants whose requests are refused for who makes them.
const (
	unknown         = "unknown"
	suspendedTenant = "suspended"
)

// person is a tenant or an address, with the counts of its requests.
type person struct {
	Person
	owner    string       // as counted: the name, or its hash if the name is too long for an owner
	tenant   *plan.Tenant // nil for an address, and for a tenant that is not in the plans file
	set      *plan.Set    // the default plan's, of a tenant that is not in the plans file and not unknown
	inMinute minuteCount  // denials
}

func (p *person) count(what outcome, shadowed bool, now time.Time, wait time.Duration) {
	p.Requests++
	switch what {
	case allowed:
		p.Allowed++
		if shadowed {
			p.ShadowDenied++
		}
	case denied:
		if p.Denied == 0 {
			p.FirstDenied = now
		}
		p.Denied++
		p.LastDenied = now
		p.LongestWaitMS = max(p.LongestWaitMS, millis(wait))
	case unknownTenant, suspended, noRoute:
	}
}

// people counts persons by name, exactly up to a bound. Above the bound, the persons with the fewest denials and
// requests are counted together as others. A person who comes back later is counted from 0 again, so these counts are
// lower bounds.
type people struct {
	bound  int
	byName map[string]*person
	byText map[string]*person // addresses as the log spells them
	others Others
	pruned bool
}

func newPeople(bound int) *people {
	return &people{bound: bound, byName: make(map[string]*person), byText: make(map[string]*person)}
}

// get returns the person with the name. found is false if the person is new.
func (p *people) get(name string) (who *person, found bool) {
	if who, found = p.byName[name]; found {
		return who, true
	}
	if len(p.byName) >= p.bound {
		p.prune()
	}
	name = strings.Clone(name) // which is a part of a line
	who = &person{Person: Person{Name: name}, owner: name}
	if len(name) > limit.MaxNameBytes {
		sum := sha256.Sum256([]byte(name))
		who.owner = hex.EncodeToString(sum[:])
	}
	p.byName[name] = who
	return who, false
}

// address returns the person with a client address. IPv6 addresses of one network are one person, as in production.
func (p *people) address(spelling string, ipv6Prefix int) *person {
	if who, ok := p.byText[spelling]; ok {
		return who
	}
	who, _ := p.get(canonicalAddress(spelling, ipv6Prefix))
	if len(p.byText) >= p.bound {
		clear(p.byText)
	}
	p.byText[strings.Clone(spelling)] = who
	return who
}

// prune moves the half with the fewest denials and requests to the others.
func (p *people) prune() {
	all := p.ranked()
	for _, who := range all[len(all)/2:] {
		p.others.add(&who.Person)
		delete(p.byName, who.Name)
	}
	clear(p.byText)
	p.pruned = true
}

// ranked returns all persons, ordered by denials and then by requests, most first.
func (p *people) ranked() []*person {
	all := make([]*person, 0, len(p.byName))
	for _, who := range p.byName {
		all = append(all, who)
	}
	slices.SortFunc(all, func(a, b *person) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.ShadowDenied, a.ShadowDenied),
			cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func (p *people) report(top int) Ranking {
	all := p.ranked()
	out := Ranking{Total: len(all) + int(p.others.Count), Exact: !p.pruned, Top: []Person{}, Others: p.others}
	for i, who := range all {
		if i < top {
			out.Top = append(out.Top, who.Person)
		} else {
			out.Others.add(&who.Person)
		}
	}
	return out
}

// canonicalAddress returns the form in which an address is counted. A host name is returned in lower case.
func canonicalAddress(text string, ipv6Prefix int) string {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return strings.ToLower(text)
	}
	if a = identity.Canonical(a, ipv6Prefix); a.Is6() && ipv6Prefix < a.BitLen() {
		return netip.PrefixFrom(a, ipv6Prefix).String()
	}
	return a.String()
}
