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

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// storedNamespace is the namespace of the items in testdata/stored-COMMIT.json. The code of that commit has written
// them for the cases of limittest.Stored.
const storedNamespace = "stored"

var writeStored = flag.String("stored", "",
	"write testdata/stored-`COMMIT`.json, which must not be there, with what this code stores")

func storedFile(commit string) string { return filepath.Join("testdata", "stored-"+commit+".json") }

// loadStored puts what the code of a commit stored into the table under test, and returns it. It replaces the stored
// namespace by that of the test, and moves ttls into the future.
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

// TestWriteStored writes the fixture of a commit if the flag -stored is given. Otherwise it does nothing.
func TestWriteStored(t *testing.T) {
	if *writeStored == "" {
		return
	}
	if _, err := os.Stat(storedFile(*writeStored)); err == nil {
		t.Fatalf("%s exists already, and a fixture must not be changed", storedFile(*writeStored))
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

// undecided repeats a call if a new chain of items takes more tries than one decision has.
type undecided struct{ *dynamodb.Store }

func (u undecided) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) (err error) {
	for range 3 {
		if err = u.Store.Decide(ctx, req, now, d); !errors.Is(err, dynamodb.ErrUndecided) {
			break
		}
	}
	return err
}

// Guarantees that the fixture contains each form that the commit stored, so that a test over it covers all of them.
func TestStoredFormsAreComplete(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	items := loadStored(t, client, c.Namespace, "71d6d5d")
	// parts of the keys and the beginning of an attribute
	for _, want := range []struct{ what, key, attribute, field string }{
		{"fixed windows", "windows,|s0", "windows/f10000", "n"},
		{"a sliding window", "windows,|s0", "sliding/w60000", "p"},
		{"a token bucket", "windows,|s0", "burst/t1000", "e"},
		{"a leaky bucket", "windows,|s0", "even/l1000", "s"},
		{"a quota", "windows,|s0", "monthly/q", "e"},
		{"a shadow", "windows,|s0", "tried/F60000", "n"},
		{"sliding buckets", "stamps,|s0", "steps/b60000-24", "s"},
		{"leased units", "leased,|s0", "burst/t1000", "q"},
		{"refunded units", "refunded,|s0", "burst/t1000", "u"},
		{"an item that is full", "routes,|s0", "full", ""},
		{"the next of a chain", "routes,|s1", "ttl", ""},
		{"a value", "values,|v7:subject,=5:alice,", "person/f", "n"},
		{"no value", "values,|v7:subject,~0:,", "person/f", "n"},
		{"all other values", "values,|v7:subject,*0:,", "person/f", "n"},
		{"an address", ",a32:0f", "burst/t1000", "e"},
		{"a receipt", "refunded,|r", "v", ""},
	} {
		found := slices.ContainsFunc(items, func(i map[string]types.AttributeValue) bool {
			if !strings.Contains(text(i["PK"])+"|"+text(i["SK"]), want.key) {
				return false
			}
			for name, v := range i {
				counter, ok := v.(*types.AttributeValueMemberM)
				if strings.HasPrefix(name, want.attribute) && (ok == (want.field != "")) &&
					(!ok || counter.Value[want.field] != nil) {
					return true
				}
			}
			return false
		})
		if !found {
			t.Errorf("%s is not among the stored items", want.what)
		}
	}
}
