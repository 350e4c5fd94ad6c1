// Package otlppeer reads what Sluice sends by OTLP with OpenTelemetry's own types. It is in this module so that they
// are no dependency of Sluice.
//
// The OTLP receiver of OpenTelemetry's collector is no dependency here, either: it would add 62 modules, and change the
// version of golang.org/x/net with which this module measures servers. Version 0.165.0 was given the message of the
// test by hand, and read all of it: the histogram with its buckets, the counter and the gauge.
package otlppeer
