package accesslog

import (
	"bytes"
	"time"
)

// stampBytes is the length of "17/May/2015:10:05:03 +0000".
const stampBytes = 26

// parseTime reads a time stamp that begins at text[0] and ends with a bracket: n is the length with the bracket. A
// fraction of a second is read to the µs. ok is false if the day does not exist or is before 1970.
func (p *Parser) parseTime(text []byte) (us int64, n int, ok bool) {
	if len(text) > stampBytes && text[stampBytes] == ']' {
		if p.us > 0 && bytes.Equal(text[:stampBytes], p.stamp[:]) {
			return p.us, stampBytes + 1, true
		}
		if us, ok = stamp(text[:20], text[20:stampBytes]); ok {
			copy(p.stamp[:], text)
			p.us = us
		}
		return us, stampBytes + 1, ok
	}
	return parseFraction(text)
}

// parseFraction does what parseTime does for the rarer form "17/May/2015:10:05:03.250 +0000".
func parseFraction(text []byte) (us int64, n int, ok bool) {
	end := bytes.IndexByte(text[:min(len(text), stampBytes+11)], ']')
	if end < stampBytes+2 || text[20] != '.' {
		return 0, 0, false
	}
	us, ok = stamp(text[:20], text[end-6:end])
	fraction := text[21 : end-6]
	scale := int64(1_000_000)
	for _, c := range fraction {
		if c < '0' || c > '9' {
			return 0, 0, false
		}
		scale /= 10
		us += int64(c-'0') * scale
	}
	return us, end + 1, ok && len(fraction) > 0
}

// stamp parses "17/May/2015:10:05:03" and " +0000". It does not use time.Parse, which allocates memory for each zone
// and refuses leap seconds.
func stamp(t, zone []byte) (us int64, ok bool) {
	if t[2] != '/' || t[6] != '/' || t[11] != ':' || t[14] != ':' || t[17] != ':' {
		return 0, false
	}
	day, month := two(t[0:]), monthOf(t[3:6])
	year := two(t[7:])*100 + two(t[9:])
	hour, minute, second := two(t[12:]), two(t[15:]), two(t[18:])
	if year < 1970 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 {
		return 0, false
	}
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	offset, inZone := zoneOffset(zone)
	seconds := midnight.Unix() + int64(hour*3600+minute*60+second) - offset
	// A day that does not exist, such as 31 April, would be a day of another month.
	return seconds * 1_000_000, midnight.Month() == month && midnight.Day() == day && inZone && seconds > 0
}

// zoneOffset parses " +0000", and returns the offset in seconds east of Greenwich.
func zoneOffset(zone []byte) (seconds int64, ok bool) {
	hours, minutes := two(zone[2:]), two(zone[4:])
	if zone[0] != ' ' || hours < 0 || hours > 23 || minutes < 0 || minutes > 59 {
		return 0, false
	}
	seconds = int64(hours*60+minutes) * 60
	switch zone[1] {
	case '-':
		return -seconds, true
	case '+':
		return seconds, true
	}
	return 0, false
}

// two parses two digits. If they are not digits, it returns a number far below zero, which no range accepts.
func two(t []byte) int {
	a, b := int(t[0])-'0', int(t[1])-'0'
	if a < 0 || a > 9 || b < 0 || b > 9 {
		return -1 << 20
	}
	return a*10 + b
}

// monthOf returns a month, or 0 if the name is none.
func monthOf(name []byte) time.Month {
	const names = "JanFebMarAprMayJunJulAugSepOctNovDec"
	for m := range 12 {
		if string(name) == names[3*m:3*m+3] {
			return time.Month(m + 1)
		}
	}
	return 0
}
