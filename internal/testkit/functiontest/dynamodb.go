package functiontest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// Stores are control tables and a cell's table in DynamoDB, new for each test.
type Stores struct {
	URL     string
	Names   map[control.Table]string
	Control *dynamo.Tables
	Config  string // name of the cell's config table
	Cell    *dynamotable.Table
}

// NewStores makes the tables in the DynamoDB whose endpoint is in SLUICE_DYNAMODB; scripts/dynamodb-local.sh prints it.
// If the variable is not set, the test is skipped, or fails if REQUIRE_STORES names dynamodb.
func NewStores(t testing.TB) *Stores {
	t.Helper()
	url := dynamodbtest.Need(t)
	c, done := dynamodbtest.Connect(url)
	t.Cleanup(done)
	prefix := fmt.Sprintf("function-%d-%d-", os.Getpid(), time.Now().UnixNano())
	s := &Stores{URL: url, Names: dynamo.Names(prefix), Config: prefix + "config"}
	for _, name := range s.Names {
		dynamodbtest.CreateControlTable(t, c, name)
	}
	dynamodbtest.CreateConfigTable(t, c, s.Config)
	s.Control = dynamo.New(c, s.Names)
	s.Cell = dynamotable.New(dynamotable.Config{Client: c, Table: s.Config})
	return s
}

// Put writes the first version of an item.
func (s *Stores) Put(t testing.TB, table control.Table, key, body string) control.Item {
	t.Helper()
	i, err := s.Control.Put(t.Context(), control.Change{Table: table, Key: key, Body: []byte(body), Actor: "tester",
		Reason: "test", Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return i
}
