package plan

import (
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// per says which counters a limit has.
type per struct {
	text  string // its words, sorted and joined with "+"
	parts []part // without the word tenant
}

// part is one word of a limit's per.
type part struct {
	kind  partKind
	claim string
}

type partKind uint8

const (
	perEndpoint partKind = iota + 1
	perSubject
	perAPIKey
	perIP
	perClaim
)

var perWords = []string{limit.PerTenant, "endpoint", "subject", "api_key", "ip", "claim:NAME"}

const (
	maxParts     = 8
	maxClaimName = 64
)

// per reads the words that say which counters a limit has: one word, or a list of them.
func (r *reader) per(v value) (out per, ok bool) {
	items := []value{v}
	if isList(v) {
		if items, ok = r.List(v, "words"); !ok {
			return out, false
		}
		if len(items) < 1 || len(items) > maxParts {
			r.Problem(v, "%d words, want 1 to %d", len(items), maxParts)
			return out, false
		}
	}
	byWord := make(map[string]part, len(items))
	words := make([]string, 0, len(items))
	ok = true
	for _, item := range items {
		word, p, good := r.perWord(item)
		_, twice := byWord[word]
		switch {
		case !good:
		case twice:
			r.Problem(item, "%s is there twice", word)
		case word == limit.PerTenant && len(items) > 1:
			r.Problem(item, "tenant is redundant in a list: every counter is one tenant's")
		default:
			byWord[word] = p
			words = append(words, word)
			continue
		}
		ok = false
	}
	slices.Sort(words)
	for _, w := range words {
		if w != limit.PerTenant {
			out.parts = append(out.parts, byWord[w])
		}
	}
	if out.text = strings.Join(words, "+"); len(out.text) > limit.MaxNameBytes {
		r.Problem(v, "the words have %d bytes together, want at most %d", len(out.text), limit.MaxNameBytes)
		ok = false
	}
	return out, ok
}

func (r *reader) perWord(v value) (string, part, bool) {
	type word struct {
		text string
		part part
	}
	w, ok := choice(r, v, func(s string) (word, bool) {
		if name, is := strings.CutPrefix(s, "claim:"); is {
			return word{s, part{kind: perClaim, claim: name}}, true
		}
		for k, known := range perWords[:perClaim] {
			if s == known {
				return word{s, part{kind: partKind(k)}}, true
			}
		}
		return word{}, false
	}, perWords)
	if ok && w.part.kind == perClaim && !validClaim(w.part.claim) {
		r.Problem(v, "claim name %s is not 1 to %d printable ASCII characters other than space and +",
			configfile.Quote(w.part.claim), maxClaimName)
		ok = false
	}
	return w.text, w.part, ok
}

// validClaim excludes "+" from names, since "+" joins the words of a per.
func validClaim(name string) bool {
	if name == "" || len(name) > maxClaimName {
		return false
	}
	return strings.IndexFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '+' }) < 0
}
