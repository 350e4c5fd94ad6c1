// Package request is the folder for a request and its answer: who calls (identity), the events of API Gateway (apigw),
// headers and bodies of answers (answer), headers for the service behind (forward), and requests from programs on this
// machine (loopback).
package request
