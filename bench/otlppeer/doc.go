// Package otlppeer reads what Sluice sends by OTLP with OpenTelemetry's own types. It is in this module so that they
// are no dependency of Sluice.
package otlppeer
