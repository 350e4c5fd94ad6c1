package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// areLimitsFiles reports whether the arguments of check are files for sluice serve --config, which have the key domain,
// and not the key plans.
func areLimitsFiles(paths []string) bool {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		var root struct {
			Domain yaml.Node `yaml:"domain"`
			Plans  yaml.Node `yaml:"plans"`
		}
		if err != nil || yaml.Unmarshal(text, &root) != nil || root.Domain.IsZero() || !root.Plans.IsZero() {
			return false
		}
	}
	return true
}

// checkLimits checks files for sluice serve --config as that command does when it starts.
func (f *checkFlags) checkLimits(c *cobra.Command, paths []string) error {
	if f.json || f.effective {
		return usagef("--json and --effective are for plans files; these are files for sluice serve --config")
	}
	var config *envoyconfig.Config
	_, err := server.OpenFiles(server.FilesConfig{Paths: paths, Log: slog.New(slog.DiscardHandler),
		Options: envoyconfig.Options{Mapping: true}, Apply: func(loaded *envoyconfig.Config) { config = loaded }})
	if err != nil {
		return err
	}
	for _, warning := range config.Warnings() {
		fmt.Fprintln(c.ErrOrStderr(), "warning:", warning)
	}
	if n := len(config.Warnings()); n > 0 && f.strict {
		return fmt.Errorf("%s, which --strict makes fail the check", count(n, "warning"))
	}
	if !f.quiet {
		fmt.Fprintf(c.OutOrStdout(), "%s: ok: %s, domains %s\n", strings.Join(paths, ", "),
			count(config.Rules(), "limit"), strings.Join(config.Domains(), ", "))
	}
	return nil
}
