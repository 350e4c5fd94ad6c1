package route

// NumRewrites is the number of rewrites.
const NumRewrites = len(rewrites)

// WithoutRewrite runs f while rewrite i does nothing.
func WithoutRewrite(i int, f func()) {
	was := rewrites[i]
	defer func() { rewrites[i] = was }()
	rewrites[i] = func(dst []byte, _ string) ([]byte, bool) { return dst, false }
	f()
}

// FoldRune exports foldRune.
func FoldRune(r rune) rune { return foldRune(r) }

// HasCase exports hasCase.
func HasCase(s string) bool { return hasCase(s) }
