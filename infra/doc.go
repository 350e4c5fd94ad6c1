// Package infra has what Sluice is on AWS, as CDK constructs that others can use in stacks of their own, and the stacks
// of the deployment file.
//
// Where each thing lives:
//
//	sample          a program to read and copy: a REST API behind the authorizer of each cell
//	config          the deployment file: types, defaults, checks, and every physical name; no CDK
//	app             the program that cdk runs; cdk.json names it, make synth and make deploy call it
//	stacks.go       which stacks a deployment has, and their order
//	control.go      ControlPlane: control tables, publisher, archiver, balancer, canary, admin
//	audit.go        its audit bucket, and the trail of data events
//	cell.go         Cell: counters, config table, queue, authorizer, applier, reconcile, ops
//	network.go      the VPC of a full cell, or the security groups in one that is there; cache.go its Valkey
//	environment.go  what each function's variables are; checked at synth by the function's own reader of them
//	function.go     one Lambda function with its role, log group and sources, from internal/aws/grants
//	bundle.go       for which architecture functions are built, and that their zips are
//	policy.go       what a role may do: internal/aws/grants, with the ARNs of this deployment
//	alarm           which alarms there are, as data; no CDK
//	alarms.go       the alarms, and the topic on which they are heard; dashboard.go draws what they look at
//	killswitch.go   the mode of a cell's limits, in AppConfig
//	ratelimit.go    RateLimitService: the rate limit service for Envoy on Fargate, behind a network load balancer
//	waf.go          a firewall in front of REST APIs, and floor.go usage plans under them: what stands when every store is away
//	attach*.go      AttachREST, AttachHTTP, AttachWebSocket: the authorizer in front of an API
//	parts.go        tables, queues and the operators' API
//	pepper          puts a pepper into the secret: what Secrets Manager cannot make by itself
//	testdata        each stack's template as it is made; make golden rewrites them
//
// Nothing is exported from one stack to another: what must be known elsewhere has a name that follows from the
// deployment, see [config.Names]. Constructors return errors and do not panic.
package infra
