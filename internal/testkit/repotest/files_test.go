package repotest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// findRoot returns the repository's folder: the one above dir that contains go.mod and .ci.
func findRoot(dir string) (string, error) {
	for root := dir; root != filepath.Dir(root); root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, ".ci")); err == nil {
			return root, nil
		}
	}
	return "", fmt.Errorf("find the repository above %s: no folder holds .ci", dir)
}

// listFiles lists the files of the repository, slash-separated and relative to root, except those of git and those that
// .gitignore names.
func listFiles(root string) ([]string, error) {
	ignored, err := ignore(root)
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case rel == ".":
		case entry.Name() == ".git" || ignored(rel, entry.IsDir()):
			if entry.IsDir() {
				return filepath.SkipDir
			}
		case !entry.IsDir():
			files = append(files, rel)
		}
		return nil
	})
	return files, err
}

// ignore reads .gitignore of the root. It supports the forms used there ("/dir/", "dir/", "/file" and "*.ext"), and
// fails for others.
func ignore(root string) (func(rel string, dir bool) bool, error) {
	text, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '!' || strings.Contains(strings.Trim(line, "/"), "/") || strings.Contains(line, "**") {
			return nil, fmt.Errorf(".gitignore: %q is a form that repotest does not read", line)
		}
		lines = append(lines, line)
	}
	return func(rel string, dir bool) bool {
		return slices.ContainsFunc(lines, func(line string) bool {
			anchored, pattern := strings.CutPrefix(line, "/")
			if pattern {
				line = anchored
			}
			name, dirOnly := strings.CutSuffix(line, "/")
			if dirOnly && !dir {
				return false
			}
			if pattern {
				return name == rel
			}
			ok, err := path.Match(name, path.Base(rel))
			return ok && err == nil
		})
	}, nil
}
