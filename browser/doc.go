// Package browser opens what Sluice shows to people, the live page and the simulation report, in a real headless
// Chromium and compares what is seen with the counters. It is a module of its own, so that its driver is no dependency
// of Sluice.
//
// The tests find Chromium by SLUICE_CHROMIUM or on the PATH, and are skipped where there is none, unless
// REQUIRE_BROWSER=1. Run them with -count=1: one builds the program, and the test cache does not see of what. With
// SLUICE_SCREENSHOTS=DIR they leave pictures of what they saw in DIR.
package browser
