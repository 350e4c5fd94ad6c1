package environ

import (
	"errors"
	"io/fs"
	"strings"
)

// Admin are the settings of the admin function.
type Admin struct {
	Common
	API       string // the one API that is answered: its id and stage, as a1b2c3/v1
	Tables    ControlTables
	CellTable []CellTable // for the status of the cells' configuration; none: there is no status
	Secret    string      // that has the peppers of new keys; "": keys are made elsewhere
	Pepper    string      // id of the pepper that new keys are hashed with, with Secret
}

// ParseAdmin reads the admin function's settings, as [Parse] does.
func ParseAdmin(environ []string) (*Admin, error) {
	s := &Admin{}
	if _, err := parse("admin function", environ, s, s.variables()); err != nil {
		return nil, err
	}
	if (s.Secret == "") != (s.Pepper == "") {
		return nil, &Error{[]Problem{{"SLUICE_KEY_PEPPER", "goes with SLUICE_SECRET"}}}
	}
	return s, nil
}

func (s *Admin) variables() []variable {
	return append([]variable{
		operatorsAPI(&s.API),
		table("PLANS", &s.Tables.Plans, tableName), table("TENANTS", &s.Tables.Tenants, tableName),
		table("KEYS", &s.Tables.Keys, tableName), table("CELLS", &s.Tables.Cells, tableName),
		{"SLUICE_STATUS_CELLS", "", false, "The cells whose configuration has a status, separated by commas: `eu-1=` and the name or ARN of its config table.",
			func(v string) string { return cells(&s.CellTable, v, "config") }},
		{"SLUICE_SECRET", "", false, "The secret with the peppers of keys: its name or ARN. Not set: keys are made by the caller.",
			func(v string) string { return match(&s.Secret, v, secretName, "a secret's name or ARN") }},
		{"SLUICE_KEY_PEPPER", "", false, "With SLUICE_SECRET: the id of the pepper that new keys are hashed with.",
			func(v string) string { return match(&s.Pepper, v, cellName, "1 to 64 of A-Z a-z 0-9 . _ -") }},
	}, s.common()...)
}

// Ops are the settings of a cell's ops function: those of its authorizer, and the table of operations.
type Ops struct {
	*Settings
	API        string // as of [Admin]
	Operations string // the control table, by name or ARN
}

// Shared returns the settings that all functions have.
func (s *Ops) Shared() Common {
	return Common{LogLevel: s.LogLevel, MetricsNamespace: s.MetricsNamespace}
}

// ParseOps reads a cell's ops settings, as [Parse] does.
func ParseOps(environ []string, bundle fs.FS) (*Ops, error) {
	s, own, rest := &Ops{}, []string(nil), []string(nil)
	for _, e := range environ {
		switch name, _, _ := strings.Cut(e, "="); {
		case name == "SLUICE_OPERATIONS_TABLE" || name == "SLUICE_API":
			own = append(own, e)
		default:
			rest = append(rest, e)
		}
	}
	_, bad := parse("ops function", own, s, s.variables())
	var err error
	s.Settings, err = Parse(rest, bundle)
	var all Error
	for _, err := range []error{bad, err} {
		var one *Error
		if errors.As(err, &one) {
			all.Problems = append(all.Problems, one.Problems...)
		} else if err != nil {
			return nil, err
		}
	}
	if len(all.Problems) > 0 {
		return nil, &all
	}
	if s.ConfigTable == "" {
		return nil, &Error{[]Problem{{"SLUICE_CONFIG_TABLE", "is not set: an ops function reads the cell's config table"}}}
	}
	return s, nil
}

// variables are those that the authorizer does not have.
func (s *Ops) variables() []variable {
	return []variable{operatorsAPI(&s.API), table("OPERATIONS", &s.Operations, tableName)}
}

// operatorsAPI is the variable that names the API in front of a function for operators.
func operatorsAPI(to *string) variable {
	return variable{"SLUICE_API", "", true,
		"The API in front of the function: its id and stage, as in `a1b2c3/v1`. Events of others are refused.",
		func(v string) string {
			const want = "is to be an API's id and stage, as in a1b2c3/v1"
			id, stage, ok := strings.Cut(v, "/")
			if !ok || !apiID.fits(id) || !stageName.fits(stage) {
				return want
			}
			*to = v
			return ""
		}}
}
