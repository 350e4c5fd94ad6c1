// Package request is the folder of what one request and its answer are made of: who calls (identity), the events of API
// Gateway (apigw), headers and bodies of answers (answer), headers for the service behind (forward), and which requests
// come from programs of this machine (loopback).
package request
