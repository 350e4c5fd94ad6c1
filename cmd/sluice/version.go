package main

import (
	"cmp"
	"runtime/debug"
)

// version returns the text of --version: the module's version, which the go command records in the program. Of a
// program that was built from a commit, it contains the commit, and says whether files had been changed.
func version(read func() (*debug.BuildInfo, bool)) string {
	info, ok := read()
	if !ok {
		return "unknown: built without module support"
	}
	return cmp.Or(info.Main.Version, "(devel)") + ", " + info.GoVersion
}
