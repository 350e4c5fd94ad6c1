// Package otlppeer uses OpenTelemetry's own types to read what Sluice sends by OTLP. It is in this module so that
// Sluice does not depend on them.
//
// This module does not depend on the OTLP receiver of OpenTelemetry's collector, either: that would add 62 modules, and
// change the version of golang.org/x/net with which this module measures servers. By hand, version 0.165.0 of the
// receiver was given the test's message, and it read all of it: the histogram with its buckets, the counter and the
// gauge.
package otlppeer
