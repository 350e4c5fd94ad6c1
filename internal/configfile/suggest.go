package configfile

import (
	"strconv"
	"strings"
)

// Nearest is the word that was probably meant: equal but for case or separators, or within a third of its letters; ""
// where none is.
func Nearest(got string, words []string) string {
	if len(got) > 64 {
		return ""
	}
	best, least := "", 1<<30
	for _, w := range words {
		d := distance(fold(got), fold(w))
		if d < least && (d == 0 || d <= len(w)/3) {
			best, least = w, d
		}
	}
	return best
}

// DidYouMean is " (did you mean …?)" with the nearest of the words, or "".
func DidYouMean(got string, words []string) string {
	if near := Nearest(got, words); near != "" {
		return " (did you mean " + strconv.Quote(near) + "?)"
	}
	return ""
}

func fold(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// distance counts the insertions, deletions, replacements and swaps of neighbours between two words.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			differs := 1
			if a[i-1] == b[j-1] {
				differs = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+differs)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
