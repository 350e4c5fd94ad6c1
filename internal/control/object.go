package control

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/events"
)

// ObjectPrefix begins the names of all audit objects.
const ObjectPrefix = "audit/"

// versionDigits is the number of digits of events.MaxVersion. Versions are padded to it, so that names sort like
// versions.
const versionDigits = 16

// ObjectName returns the name of the object that holds the audit record of a version:
// audit/<table>/<key>/<version with 16 digits>.json, in at most 423 bytes.
//
// In the key, A-Z a-z 0-9 - _ stand for themselves, as does a point that is not the first character; any other byte is
// written as ! and two hex digits. All of these are safe in names of S3 objects, none is a slash, and no segment is .
// or .., so that every name belongs to exactly one key. Names differ by case: a file system that ignores case cannot
// hold all of them.
func ObjectName(t Table, key string, version int64) string {
	return fmt.Sprintf("%s%s.json", ObjectFolder(t, key), fmt.Sprintf("%0*d", versionDigits, version))
}

// ObjectFolder returns the prefix that the names of all versions of an item have, and no other names.
func ObjectFolder(t Table, key string) string {
	return ObjectPrefix + string(t) + "/" + escape(key) + "/"
}

// ParseObjectName is the inverse of [ObjectName]. Anything that ObjectName never returns is an error.
func ParseObjectName(name string) (t Table, key string, version int64, err error) {
	bad := fmt.Errorf("%.200q is not the name of an audit object", name)
	rest, ok := strings.CutPrefix(name, ObjectPrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return "", "", 0, bad
	}
	digits, ok := strings.CutSuffix(parts[2], ".json")
	if !ok || len(digits) != versionDigits {
		return "", "", 0, bad
	}
	t = Table(parts[0])
	if key, ok = unescape(parts[1]); !ok || events.CheckKey(t, key) != nil {
		return "", "", 0, bad
	}
	version, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || version < 1 || version > events.MaxVersion || ObjectName(t, key, version) != name {
		return "", "", 0, bad
	}
	return t, key, version, nil
}

func escape(key string) string {
	var b strings.Builder
	for i, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "!%02X", c)
		}
	}
	return b.String()
}

// unescape may accept text that escape never returns, since ParseObjectName compares whole names.
func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '!' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), true
}
