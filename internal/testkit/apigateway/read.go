package apigateway

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Parse reads a description, YAML or JSON. An unknown key is an error, since a test with a setting that is ignored
// would prove nothing. name is the name of the file, for the error.
func Parse(name string, data []byte) (*Description, error) {
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	d := new(Description)
	if err := in.Decode(d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
