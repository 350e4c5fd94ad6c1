// Package browser tests Sluice's pages for people, the live page and the report of bench/fleet, in a headless Chromium,
// and compares what they show with the counters. It is a separate module, so that Sluice does not depend on its driver.
//
// The tests find Chromium by SLUICE_CHROMIUM or on the PATH, and are skipped without one, unless
// REQUIRE_BROWSER=1. Run them with -count=1: one test builds the program, and the test cache does not see its sources.
// With SLUICE_SCREENSHOTS=DIR they write screenshots to DIR.
package browser
