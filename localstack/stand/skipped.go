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

// passedOver is what LocalStack says of a resource of a type that it does not know: it makes nothing, and calls that a
// success.
const passedOver = "is not supported but was deployed as a fallback"

// stacks are the names of all stacks that are deployed, and the regions where they are.
func (s *Stand) stacks() map[string]string {
	all := map[string]string{controlStack: s.deployed.control}
	for _, c := range s.deployed.cells {
		all["sluice-cell-"+c.ID] = c.Region
	}
	return all
}

// Skipped are the types of resources that LocalStack ignored although it reported success, and their stacks.
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
			if strings.Contains(e.Reason, passedOver) && !slices.Contains(types[e.Type], stack) {
				types[e.Type] = append(types[e.Type], stack)
			}
		}
	}
	return types, nil
}

// MaySkip reads localstack/skipped.txt: the types of resources that LocalStack may pass over, each with why that does
// no harm here.
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
			return nil, fmt.Errorf("%s:%d: want a type once, and why it may be passed over", name, n)
		}
		may[typ] = why
	}
	return may, lines.Err()
}

// CheckSkipped returns an error where LocalStack passed over what the list does not name, and, of the LocalStack that
// is pinned, where the list names what it did not pass over: an entry that nothing needs would hide the next one.
// Another one may know more.
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
			wrong = append(wrong, fmt.Sprintf("LocalStack passed over %s of %s, which localstack/skipped.txt does "+
				"not name", typ, strings.Join(skipped[typ], ", ")))
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(may)) {
		if skipped[typ] == nil {
			wrong = append(wrong, fmt.Sprintf("localstack/skipped.txt names %s, and LocalStack passed none over", typ))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}
