package stand

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what LocalStack's processes have in memory, in MB: its own, and those that it has started, such as functions and DynamoDB Local.
// What several of them share is counted for each. The LocalStack is one that localstack/up started.
func (s *Stand) Memory() (float64, error) {
	folder, err := s.folder()
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(folder, "localstack.pid"))
	if err != nil {
		return 0, err
	}
	root, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("LocalStack's process: %w", err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	children, pages := map[int][]int{}, map[int]int64{}
	for _, file := range all {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, parent, rss, err := readStat(stat)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		children[parent], pages[pid] = append(children[parent], pid), rss
	}
	if pages[root] == 0 {
		return 0, fmt.Errorf("LocalStack's process %d is gone", root)
	}
	sum := int64(0)
	for open := []int{root}; len(open) > 0; {
		pid := open[0]
		open = append(open[1:], children[pid]...)
		sum += pages[pid]
	}
	return float64(sum) * float64(os.Getpagesize()) / 1e6, nil
}

// readStat reads what /proc has of a process: fields of proc_pid_stat(5), of which the second may hold anything.
func readStat(stat []byte) (pid, parent int, rssPages int64, err error) {
	const parentField, rssField = 4, 24
	name := bytes.LastIndexByte(stat, ')')
	if name < 0 {
		return 0, 0, 0, fmt.Errorf("no name in %.100q", stat)
	}
	fields := strings.Fields(string(stat[name+1:])) // from the third on
	if len(fields) <= rssField-3 {
		return 0, 0, 0, fmt.Errorf("too few fields in %.100q", stat)
	}
	if _, err = fmt.Sscan(string(stat), &pid); err == nil {
		if parent, err = strconv.Atoi(fields[parentField-3]); err == nil {
			rssPages, err = strconv.ParseInt(fields[rssField-3], 10, 64)
		}
	}
	return pid, parent, rssPages, err
}
