// Package limitsv1 is the protocol of Sluice's own API: limits.proto, the code that scripts/proto generates from it,
// and openapi.yaml, which describes the same over HTTP.
package limitsv1

import _ "embed"

// OpenAPI is the description of the API over HTTP, in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
