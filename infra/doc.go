// Package infra contains Sluice's AWS resources as CDK constructs, which you can use in stacks of your own, and the
// stacks of a deployment file.
//
// The files and folders:
//
//	sample          an example program to copy: a REST API behind the authorizer of each cell
//	config          the deployment file: types, defaults, checks, and every physical name; no CDK
//	app             the program that the CDK CLI runs for make synth and make deploy
//	stacks.go       the stacks of a deployment, and their order
//	control.go      ControlPlane: control tables, publisher, archiver, balancer, canary, admin
//	audit.go        the control plane's audit bucket, and the CloudTrail trail
//	cell.go         Cell: counters, config table, queue, authorizer, applier, reconcile, ops
//	network.go      the VPC of a full cell, or the security groups in an existing VPC; cache.go its Valkey cache
//	environment.go  each function's environment variables, checked by the code with which the function reads them
//	function.go     one Lambda function with its role, log group and sources, from internal/aws/grants
//	bundle.go       the architecture of the functions, and a check that their zips have it
//	policy.go       the policies of the roles: internal/aws/grants with the ARNs of this deployment
//	alarm           the alarms, as data; no CDK
//	alarms.go       makes the alarms and their topic; dashboard.go makes the dashboards
//	killswitch.go   the mode of a cell's limits, in AppConfig
//	ratelimit.go    RateLimitService: the rate limit service for Envoy on Fargate, behind a network load balancer
//	worker.go       Worker: a function that has a queue's messages handled under a provider's limit
//	waf.go          a firewall in front of REST APIs; it works without any store
//	attach*.go      AttachREST, AttachHTTP, AttachWebSocket: the authorizer in front of an API
//	parts.go        tables, queues and the operators' API
//	pepper          a program that adds a pepper to the secret
//	testdata        golden templates of the stacks; make golden rewrites them
//
// No stack exports values to another one. Resources that other stacks refer to have names that follow from the
// deployment file: see [config.Names]. Constructors return errors and do not panic.
package infra
