package stand

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// skippedReason is in LocalStack's event about a resource whose type it does not know. It creates nothing, and reports
// success.
const skippedReason = "is not supported but was deployed as a fallback"

// stacks returns the region of each stack that is deployed, by the stack's name.
func (s *Stand) stacks() map[string]string {
	all := map[string]string{controlStack: s.deployed.control}
	for _, c := range s.deployed.cells {
		all["sluice-cell-"+c.ID] = c.Region
	}
	return all
}

// Skipped returns the types of resources that LocalStack did not create although it reported success, each with the
// stacks that have such a resource.
func (s *Stand) Skipped(ctx context.Context) (map[string][]string, error) {
	types := map[string][]string{}
	for stack, region := range s.stacks() {
		events, err := s.events(ctx, region, stack)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 {
			return nil, fmt.Errorf("the stack %s has no events", stack)
		}
		for _, e := range events {
			if strings.Contains(e.Reason, skippedReason) && !slices.Contains(types[e.Type], stack) {
				types[e.Type] = append(types[e.Type], stack)
			}
		}
	}
	return types, nil
}

// MaySkip reads localstack/skipped.txt. It has the types of resources that LocalStack may skip, each with the reason
// why that does no harm in the tests.
func (s *Stand) MaySkip() (map[string]string, error) {
	name := filepath.Join(s.o.Root, "localstack", "skipped.txt")
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	may := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		typ, why, _ := strings.Cut(line, " ")
		if why = strings.TrimSpace(why); why == "" || !strings.HasPrefix(typ, "AWS::") || may[typ] != "" {
			return nil, fmt.Errorf("%s:%d: a line must have a type that is in no other line, and the reason why "+
				"it may be skipped", name, n)
		}
		may[typ] = why
	}
	return may, lines.Err()
}

// CheckSkipped returns an error if LocalStack skipped a type that is not in the list. For the LocalStack of
// localstack/up, whose version is fixed, it also returns an error if it did not skip a type in the list: otherwise the
// list would hide it if a later version skips that type again. Other versions may support more types.
func (s *Stand) CheckSkipped(ctx context.Context) error {
	skipped, err := s.Skipped(ctx)
	if err != nil {
		return err
	}
	may, err := s.MaySkip()
	if err != nil {
		return err
	}
	if !s.Ours() {
		for typ := range may {
			if skipped[typ] == nil {
				delete(may, typ)
			}
		}
	}
	return compare(skipped, may)
}

func compare(skipped map[string][]string, may map[string]string) error {
	var wrong []string
	for _, typ := range slices.Sorted(maps.Keys(skipped)) {
		if may[typ] == "" {
			wrong = append(wrong, fmt.Sprintf("LocalStack skipped %s of %s, which is not in localstack/skipped.txt",
				typ, strings.Join(skipped[typ], ", ")))
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(may)) {
		if skipped[typ] == nil {
			wrong = append(wrong, fmt.Sprintf("localstack/skipped.txt names %s, but LocalStack did not skip it", typ))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}
