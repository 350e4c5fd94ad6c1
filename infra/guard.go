package infra

import (
	"fmt"
	"strings"
)

// recoverError turns a panic into an error. CDK reports its errors in Go as panics.
func recoverError(what string, err *error) {
	if p := recover(); p != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(fmt.Sprint(p)), "\n")
		*err = fmt.Errorf("%s: %s", what, text)
	}
}
