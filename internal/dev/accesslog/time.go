package accesslog

import (
	"bytes"
	"time"
)

// layout is the form of a time stamp. A fraction of a second may follow the seconds.
const layout = "02/Jan/2006:15:04:05 -0700"

// parseTime reads a time stamp that begins at text[0] and ends with a bracket: n is the length with the bracket. A
// fraction of a second is read to the µs. ok is false if the day does not exist or is before 1970.
func (p *Parser) parseTime(text []byte) (us int64, n int, ok bool) {
	end := bytes.IndexByte(text[:min(len(text), len(layout)+11)], ']')
	if end < len(layout) || end > len(layout) && text[20] != '.' {
		return 0, 0, false
	}
	if stamp := text[:end]; string(stamp) != p.stamp {
		at, err := time.Parse(layout, string(stamp))
		if err != nil && string(stamp[17:20]) == ":60" { // a leap second, which package time does not know
			at, err = time.Parse(layout, string(stamp[:18])+"59"+string(stamp[20:]))
			at = at.Add(time.Second)
		}
		if err != nil || at.Unix() <= 0 {
			return 0, end + 1, false
		}
		p.stamp, p.us = string(stamp), at.UnixMicro()
	}
	return p.us, end + 1, true
}
