package accesslog

import (
	"bytes"
	"net/netip"
	"regexp"
)

// written matches what programs that pass a log on write before each line.
var written = func() *regexp.Regexp {
	const (
		colour  = `(?:\x1b\[[0-9;]*m)*`
		compose = `(?:` + colour + `[\w.-]+ *\|` + colour + ` +)*` // docker compose; nginx-proxy and others by forego
		pod     = `(?:\[pod/[^\] ]+\] )?`                          // kubectl logs --prefix
		iso     = `\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) `
		bsd     = `[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d `
		cri     = `(?:(?:stdout|stderr) [FP] )?` // files of containers under Kubernetes
		tag     = `(?:[\w.-]+ )?[\w./-]+(?:\[\d+\])?: `
		rfc5424 = `<\d+>1 (?:` + iso + `|- )(?:[\w./-]+ ){4}- `
		syslog  = `(?:<\d+>)?(?:` + bsd + `|` + iso + `)` + tag
	)
	return regexp.MustCompile(`^` + compose + pod + `(?:` + rfc5424 + `|` + syslog + `|` + iso + cri + `)?` + compose)
}()

// maxNames bounds how many words may stand between what other programs wrote and the client's address: the virtual
// host, the id of the request.
const maxNames = 2

// skipPrefix returns the words from the client's address on, if only a known prefix precedes it, and otherwise all
// words.
func skipPrefix(words []byte) []byte {
	if first, _, _ := bytes.Cut(words, []byte{' '}); isAddress(first) {
		return words
	}
	rest := words[len(written.Find(words)):]
	for range maxNames + 1 {
		word, after, _ := bytes.Cut(rest, []byte{' '})
		switch {
		case isAddress(word):
			return rest
		case !isName(word):
			return words
		}
		rest = after
	}
	return words
}

// isName reports whether a word can be a virtual host, with or without its port, or an id of a request.
func isName(word []byte) bool {
	name, port, hasPort := bytes.Cut(word, []byte{':'})
	if _, isNumber := number(port); hasPort && !isNumber || isAddress(name) {
		return false
	}
	return string(name) == "*" || (len(name) > 0 && string(name) != "-" && allIn(name, inName))
}

// isAddress reports whether a word is an IPv4 or IPv6 address.
func isAddress(word []byte) bool {
	if len(word) < 2 { // most words are "-", and an error of ParseAddr takes memory
		return false
	}
	_, err := netip.ParseAddr(string(word))
	return err == nil
}

// hasAddress reports whether one of the words is an address.
func hasAddress(words []byte) bool {
	for len(words) > 0 {
		var first []byte
		if first, words = word(words); isAddress(first) {
			return true
		}
	}
	return false
}

// isID reports whether a word looks like an id, as of a request, and not like the name of a client: at least 16
// hexadecimal digits, in one piece or with hyphens.
func isID(word []byte) bool {
	digits := 0
	for _, c := range word {
		switch {
		case classes[c]&inHex != 0:
			digits++
		case c != '-':
			return false
		}
	}
	return digits >= 16
}
