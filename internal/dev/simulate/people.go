package simulate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// maxPeople bounds how many tenants, and how many addresses, are counted individually.
const maxPeople = 100_000

// person is a tenant or an address, with the counts of its requests.
type person struct {
	name   string // as shown in the report
	owner  string // as counted: the name, or its hash if the name is too long for an owner
	policy policy // for a tenant

	requests, allowed, denied, shadowDenied int64
	firstDenied, lastDenied, longestWait    int64 // µs

	minute       int64 // the last minute with a denial
	minuteDenied int64
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

// tenant returns the person with the name. found is false if the person is new.
func (p *people) tenant(name []byte) (who *person, found bool) {
	if who, found = p.byName[string(name)]; found {
		return who, true
	}
	return p.add(string(name)), false
}

// address returns the person with a client address. IPv6 addresses of one network are one person, as in production.
func (p *people) address(text []byte, ipv6Prefix int) *person {
	if who, ok := p.byText[string(text)]; ok {
		return who
	}
	spelling := string(text)
	name := canonicalAddress(spelling, ipv6Prefix)
	who, ok := p.byName[name]
	if !ok {
		who = p.add(name)
	}
	if len(p.byText) >= p.bound {
		clear(p.byText)
	}
	p.byText[spelling] = who
	return who
}

func (p *people) add(name string) *person {
	if len(p.byName) >= p.bound {
		p.prune()
	}
	who := &person{name: name, owner: name}
	if len(name) > limit.MaxNameBytes {
		sum := sha256.Sum256([]byte(name))
		who.owner = hex.EncodeToString(sum[:])
	}
	p.byName[name] = who
	return who
}

// prune moves the half with the fewest denials and requests to the others.
func (p *people) prune() {
	all := p.ranked()
	for _, who := range all[len(all)/2:] {
		p.others.add(who)
		delete(p.byName, who.name)
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
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.shadowDenied, a.shadowDenied),
			cmp.Compare(b.requests, a.requests), cmp.Compare(a.name, b.name))
	})
	return all
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
