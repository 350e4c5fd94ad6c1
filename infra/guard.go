package infra

import (
	"fmt"
	"strings"
)

// recovered makes an error of a panic, as which CDK's are told in Go.
func recovered(what string, err *error) {
	if p := recover(); p != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(fmt.Sprint(p)), "\n")
		*err = fmt.Errorf("%s: %s", what, text)
	}
}
