package dynamodb_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limit/limittest"
	"github.com/sluicelimits/sluice/internal/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/store/dynamodb/dynamodbtest"
)

// storedNamespace is that of the items in testdata/stored-COMMIT.json. The code of that commit has written them, by the cases of
// limittest.Stored.
const storedNamespace = "stored"

var writeStored = flag.String("stored", "", "write testdata/stored-`COMMIT`.json, which must not be there, with what this code stores")

func storedFile(commit string) string { return filepath.Join("testdata", "stored-"+commit+".json") }

// loadStored puts what the code of a commit stored into the table under test, and returns it. The namespace is that of the test in
// place of the stored one, and times to live are not over.
func loadStored(tb testing.TB, c *sdk.Client, namespace, commit string) (items []map[string]types.AttributeValue) {
	tb.Helper()
	file, err := os.ReadFile(storedFile(commit))
	if err != nil {
		tb.Fatal(err)
	}
	var all []dynamodbtest.Item
	if err := json.Unmarshal(file, &all); err != nil {
		tb.Fatal(err)
	}
	for _, i := range all {
		item := i.Attributes()
		rest, ok := strings.CutPrefix(text(item["PK"]), fmt.Sprintf("%d:%s,", len(storedNamespace), storedNamespace))
		if !ok {
			tb.Fatalf("an item of another namespace: %q", text(item["PK"]))
		}
		item["PK"] = &types.AttributeValueMemberB{Value: fmt.Appendf(nil, "%d:%s,%s", len(namespace), namespace, rest)}
		if _, ok := item["ttl"]; ok {
			item["ttl"] = num(time.Now().Add(30 * 24 * time.Hour).Unix())
		}
		put(tb, c, item)
		items = append(items, item)
	}
	return items
}

func text(v types.AttributeValue) string {
	b, _ := v.(*types.AttributeValueMemberB)
	return string(b.Value)
}

// TestWriteStored makes the fixture of a commit, with -stored. Without it there is nothing to do: the code of later commits stores
// what its own tests say.
func TestWriteStored(t *testing.T) {
	if *writeStored == "" {
		t.Skip("-stored is not given")
	}
	if _, err := os.Stat(storedFile(*writeStored)); err == nil {
		t.Fatalf("%s is there: a fixture never changes", storedFile(*writeStored))
	}
	client := server(t)
	c := config(client)
	c.Namespace, c.Table = storedNamespace, fmt.Sprintf("stored-%d", os.Getpid())
	if err := dynamodb.Create(t.Context(), client, c.Table); err != nil {
		t.Fatal(err)
	}
	s := undecided{open(t, c)}
	for _, stored := range limittest.Stored(t, s.Accepts) {
		if err := stored.Fill(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	out, err := client.Scan(t.Context(), &sdk.ScanInput{TableName: aws.String(c.Table)})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(out.Items, func(a, b map[string]types.AttributeValue) int {
		return strings.Compare(text(a["PK"])+text(a["SK"]), text(b["PK"])+text(b["SK"]))
	})
	var all []dynamodbtest.Item
	for _, item := range out.Items {
		all = append(all, dynamodbtest.ItemOf(item))
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(storedFile(*writeStored), limittest.StoredLines(t, all), 0o644); err != nil {
		t.Fatal(err)
	}
}

// undecided asks again where a chain of items that is new takes more tries than one decision has.
type undecided struct{ *dynamodb.Store }

func (u undecided) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) (err error) {
	for range 3 {
		if err = u.Store.Decide(ctx, req, now, d); !errors.Is(err, dynamodb.ErrUndecided) {
			break
		}
	}
	return err
}

// Guarantees that the fixture holds each form that the commit stored, so that a test over it is a test of them all.
func TestStoredFormsAreComplete(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	items := loadStored(t, client, c.Namespace, "71d6d5d")
	field := func(item map[string]types.AttributeValue, counter, field string) bool {
		m, ok := item[counter].(*types.AttributeValueMemberM)
		return ok && m.Value[field] != nil
	}
	for what, has := range map[string]func(pk, sk string, item map[string]types.AttributeValue) bool{
		"fixed windows":    func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "windows/f10000", "n") },
		"a sliding window": func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "sliding/w60000", "p") },
		"a token bucket":   func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "burst/t1000", "e") },
		"a leaky bucket":   func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "even/l1000", "s") },
		"a quota": func(_, _ string, i map[string]types.AttributeValue) bool {
			for name := range i {
				if strings.HasPrefix(name, "monthly/q") {
					return field(i, name, "e")
				}
			}
			return false
		},
		"a shadow":             func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "tried/F60000", "n") },
		"sliding buckets":      func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "steps/b60000-24", "s") },
		"leased units":         func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "burst/t1000", "q") },
		"refunded units":       func(_, _ string, i map[string]types.AttributeValue) bool { return field(i, "burst/t1000", "u") },
		"an item that is full": func(_, sk string, i map[string]types.AttributeValue) bool { return sk == "s0" && i["full"] != nil },
		"the next of a chain":  func(_, sk string, i map[string]types.AttributeValue) bool { return sk == "s1" && i["ttl"] != nil },
		"a value":              func(_, sk string, _ map[string]types.AttributeValue) bool { return sk == "v7:subject,=5:alice," },
		"no value":             func(_, sk string, _ map[string]types.AttributeValue) bool { return sk == "v7:subject,~0:," },
		"all other values":     func(_, sk string, _ map[string]types.AttributeValue) bool { return sk == "v7:subject,*0:," },
		"an address": func(pk, _ string, _ map[string]types.AttributeValue) bool {
			return strings.Contains(pk, ",a32:0f")
		},
		"a receipt": func(_, sk string, _ map[string]types.AttributeValue) bool { return strings.HasPrefix(sk, "r") },
	} {
		if !slices.ContainsFunc(items, func(i map[string]types.AttributeValue) bool { return has(text(i["PK"]), text(i["SK"]), i) }) {
			t.Errorf("%s is not among the stored items", what)
		}
	}
}
