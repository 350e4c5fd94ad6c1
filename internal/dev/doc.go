// Package dev runs all of Sluice in one process, on the machine of a developer: gateways with their authorizers,
// counters and live pages, and the control plane with its cells. [Run] is what 'sluice dev' calls.
//
// The folder has what runs only on the machine of a developer or an operator: the local gateway (gateway), the
// control plane with its cells (devcells) and its token (devtoken), the live page (livepage), the simulation of plans
// on access logs (simulate, accesslog), the calculation of costs (cost), and the checks of assumptions about API
// Gateway (doctor).
package dev
