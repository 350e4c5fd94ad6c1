package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// A release sets these by the linker (.goreleaser.yaml). In other builds they are empty.
var release, releaseCommit, releaseDate string

// version returns the text of --version: the version, the commit and its date, as far as they are known, and the
// version of Go. A build that is not a release has what the go command recorded: the version of its module, which says
// whether files had been changed, and the commit if it was built in a clone.
func version(read func() (*debug.BuildInfo, bool)) string {
	info, ok := read()
	if !ok {
		return "unknown: built without module support"
	}
	commit, date := releaseCommit, releaseDate
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = cmp.Or(commit, s.Value)
		case "vcs.time":
			date = cmp.Or(date, s.Value)
		}
	}
	text := cmp.Or(release, info.Main.Version, "(devel)")
	if commit != "" {
		text += ", commit " + commit + " of " + date
	}
	return text + ", " + info.GoVersion
}

// newVersionCommand is for those who try it before --version, which is the one that help lists.
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Long:    "Prints what --version prints. docs/compatibility.md says what stays as it is between versions.",
		Example: "  sluice version",
		Hidden:  true,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "sluice version %s\n", c.Root().Version)
			return err
		},
	}
}

// newManCommand is for scripts/release, which packs the pages.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write a man page of each command into a folder",
		Long:    "Writes a man page of each command into a folder, as a release has them. See docs/release.md.",
		Example: "  sluice man /tmp/man1",
		Hidden:  true,
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // documentation is for everybody
				return err
			}
			c.Root().DisableAutoGenTag = true // which has the time of day
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Source: "sluice " + cmp.Or(release, "(devel)")}, args[0])
		},
	}
}
