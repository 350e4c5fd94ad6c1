package route

// NumRewrites is how many rewrites there are.
const NumRewrites = len(rewrites)

// WithoutRewrite runs f while rewrite i does nothing.
func WithoutRewrite(i int, f func()) {
	was := rewrites[i]
	defer func() { rewrites[i] = was }()
	rewrites[i] = func(dst []byte, _ string) ([]byte, bool) { return dst, false }
	f()
}

// FoldRune returns the letter that stands for all cases of r.
func FoldRune(r rune) rune { return foldRune(r) }

// HasCase reports whether s has letters that have a case.
func HasCase(s string) bool { return hasCase(s) }
