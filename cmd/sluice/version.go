package main

import (
	"cmp"
	"runtime/debug"
)

// version returns the text of --version: the module's version, or the commit that the program was built from. The go
// command records both in the program.
func version(read func() (*debug.BuildInfo, bool)) string {
	info, ok := read()
	if !ok {
		return "unknown: built without module support"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v + ", " + info.GoVersion
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ", with changes"
		}
	}
	return cmp.Or(commit, "of an unknown commit") + changed + ", " + info.GoVersion
}
