package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Shell completion offers files for arguments and flags that take a file, and for no others, such as a tenant's id.
func TestCompletionOffersFilesForFilesAlone(t *testing.T) {
	t.Parallel()
	files := map[string]string{ // what is completed → the directive: 0 any file, 8 files by extension, 16 folders
		"check": "8", "plan apply": "8", "plan diff": "8", "simulate": "0",
		"doctor --key-file": "0", "explain --plans": "8", "dev --issuers": "8", "dev --plans": "8",
		"simulate --plans":  "8",
		"cost --deployment": "8",
		"simulate --log":    "0",
		"audit verify --db": "0", "dev --pepper": "0",
		"dev --address-key": "0", "serve --address-key": "0",
		"key create --pepper": "0", "key rotate --pepper": "0", "key hash --pepper": "0", "audit show --archive": "0",
		"audit verify --archive": "0",
		// the value is optional and follows a "=": what comes next is a file
		"plan apply --prune": "8", "plan diff --prune": "8",
		"serve --config": "8", "serve --plans": "8", "serve --pepper": "0", "serve --tls-cert": "0",
		"serve --tls-key": "0", "serve --tls-client-ca": "0", "serve --redis-ca": "0",
		"serve --redis-password-file": "0", "serve --redis-cert": "0", "serve --redis-key": "0",
		"dev --data": "16", "audit show --data": "16", "audit verify --data": "16",
	}
	directive := func(args ...string) string {
		out := strings.TrimSpace(sluice(t, "", append([]string{"__complete"}, args...)...).stdout)
		return out[strings.LastIndex(out, ":")+1:]
	}
	looked := 0
	look := func(what string, args ...string) {
		looked++
		want, isFile := files[what]
		delete(files, what)
		got := directive(args...)
		// 4: no files; 6: no files, and no space after the completion
		if isFile && got != want || !isFile && got != "4" && got != "6" {
			t.Errorf("%s: completion gives directive %s", what, got)
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		if len(path) > 0 && path[0] == "completion" {
			return
		}
		name := strings.Join(path, " ")
		if !c.HasSubCommands() && name != "help" {
			look(name, append(path, "")...)
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if _, usage := pflag.UnquoteUsage(f); strings.Contains(usage, "`") {
					t.Errorf("%s --%s: more than one name of a value has backticks, and the help prints them: %s",
						name, f.Name, usage)
				}
				if f.Value.Type() != "bool" {
					look(name+" --"+f.Name, append(path, "--"+f.Name, "")...)
				}
			})
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	for what := range files {
		t.Errorf("%s: the command has no such argument or flag", what)
	}
	if looked < 100 {
		t.Errorf("only %d arguments and flags were completed", looked)
	}
}

// Shell completion offers the words of a flag that takes one of a few words, and plans files by their extensions.
func TestCompletionOfWords(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"check", "yaml\nyml\njson\n:8\n"},
		{"dev --live-page", "loopback\nall\noff\n:4\n"},
		{"dev --log-level", "debug\ninfo\nwarn\nerror\n:4\n"},
	} {
		if got := sluice(t, "", append(append([]string{"__complete"}, strings.Fields(c.args)...),
			"")...); got.stdout != c.want {
			t.Errorf("%s: %q, want %q", c.args, got.stdout, c.want)
		}
	}
}
