package infra

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsec2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsecs"
	balancing "github.com/aws/aws-cdk-go/awscdk/v2/awselasticloadbalancingv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// The ports of `sluice serve`, and how it ends. A task that is stopped says that it is not healthy and serves until the
// balancer has seen that: three checks of 10 s.
const (
	rlsPort, rlsHealthPort = 8081, 8080
	rlsCheckSeconds        = 10
	rlsDrain, rlsGrace     = "35s", "15s"
	rlsStopSeconds         = 60 // more than both together, and at most 120, which is Fargate's bound
	rlsMaxAge              = "5m"
)

// RateLimitServiceProps sets up a [RateLimitService].
type RateLimitServiceProps struct {
	VPC awsec2.IVpc // required

	// Image has `sluice serve` as its entry point, and the configuration files; required. examples/envoy/Dockerfile is
	// one.
	Image awsecs.ContainerImage

	// Arguments are flags of `sluice serve`, such as --config and --redis; required. Those of addresses, draining and
	// logs are added.
	Arguments []string

	Clients   []awsec2.IPeer // who may ask, such as the security group of Envoy; required
	Instances int            // tasks, 2 or more; 0 selects 2
	CPU       int            // of a task, in 1/1024 of a processor; 0 selects 1024
	MemoryMiB int            // of a task; 0 selects 2048
}

// RateLimitService is `sluice serve` on Fargate, behind an internal network load balancer. It was never deployed: only
// its template is tested.
type RateLimitService struct {
	Construct constructs.Construct

	Address     *string               // for Envoy's cluster: the name of the balancer, with port 8081; a token
	Task        awsecs.TaskDefinition // its role needs rights on DynamoDB, with --dynamodb or --config-table
	Connections awsec2.Connections    // of the tasks: let them reach Redis
}

// NewRateLimitService makes the service. The error names the property that is wrong.
func NewRateLimitService(
	scope constructs.Construct, id string, props *RateLimitServiceProps,
) (s *RateLimitService, err error) {
	if err := props.check(); err != nil {
		return nil, err
	}
	defer recoverError("rate limit service", &err)
	s = &RateLimitService{Construct: constructs.NewConstruct(scope, &id)}
	s.addTask(props)
	tasks := awsec2.NewSecurityGroup(s.Construct, jsii.String("Tasks"), &awsec2.SecurityGroupProps{Vpc: props.VPC,
		Description: jsii.String("Sluice: rate limit service"), AllowAllOutbound: jsii.Bool(true)})
	front := awsec2.NewSecurityGroup(s.Construct, jsii.String("Front"), &awsec2.SecurityGroupProps{Vpc: props.VPC,
		Description: jsii.String("Sluice: in front of the rate limit service"), AllowAllOutbound: jsii.Bool(false)})
	for _, peer := range props.Clients {
		front.AddIngressRule(peer, awsec2.Port_Tcp(jsii.Number(rlsPort)), jsii.String("Envoy"), nil)
	}
	tasks.Connections().AllowFrom(front, awsec2.Port_Tcp(jsii.Number(rlsPort)), jsii.String("requests"))
	tasks.Connections().AllowFrom(front, awsec2.Port_Tcp(jsii.Number(rlsHealthPort)), jsii.String("health checks"))
	service := awsecs.NewFargateService(s.Construct, jsii.String("Service"), &awsecs.FargateServiceProps{
		Cluster:        awsecs.NewCluster(s.Construct, jsii.String("Cluster"), &awsecs.ClusterProps{Vpc: props.VPC}),
		TaskDefinition: s.Task, DesiredCount: jsii.Number(max(props.Instances, 2)),
		SecurityGroups:    &[]awsec2.ISecurityGroup{tasks},
		MinHealthyPercent: jsii.Number(100), MaxHealthyPercent: jsii.Number(200),
		CircuitBreaker: &awsecs.DeploymentCircuitBreaker{Enable: jsii.Bool(true), Rollback: jsii.Bool(true)},
	})
	s.Connections = tasks.Connections()
	s.addBalancer(props, front, service)
	return s, nil
}

func (p *RateLimitServiceProps) check() error {
	switch {
	case p == nil || p.VPC == nil:
		return errors.New("rate limit service: VPC is missing")
	case p.Image == nil:
		return errors.New("rate limit service: Image is missing")
	case len(p.Clients) == 0:
		return errors.New("rate limit service: Clients is empty: nobody could ask")
	case p.Instances < 0 || p.Instances == 1:
		return fmt.Errorf("rate limit service: %d instances: one alone cannot be replaced without a gap", p.Instances)
	case !slices.ContainsFunc(p.Arguments, func(a string) bool { return strings.HasPrefix(a, "--config") }):
		return errors.New("rate limit service: Arguments lack --config")
	}
	return nil
}

func (s *RateLimitService) addTask(p *RateLimitServiceProps) {
	cpu, memory := p.CPU, p.MemoryMiB
	if cpu == 0 {
		cpu = 1024
	}
	if memory == 0 {
		memory = 2048
	}
	task := awsecs.NewFargateTaskDefinition(s.Construct, jsii.String("Task"), &awsecs.FargateTaskDefinitionProps{
		Cpu: jsii.Number(cpu), MemoryLimitMiB: jsii.Number(memory)})
	arguments := append(slices.Clone(p.Arguments), "--grpc", fmt.Sprint(":", rlsPort), "--http",
		fmt.Sprint(":", rlsHealthPort), "--debug", "127.0.0.1:6070", "--log-format", "json", "--drain", rlsDrain,
		"--grace", rlsGrace, "--max-connection-age", rlsMaxAge)
	task.AddContainer(jsii.String("sluice"), &awsecs.ContainerDefinitionOptions{
		Image: p.Image, Command: jsii.Strings(arguments...), ReadonlyRootFilesystem: jsii.Bool(true),
		StopTimeout: awscdk.Duration_Seconds(jsii.Number(rlsStopSeconds)),
		Environment: &map[string]*string{"GOMEMLIMIT": jsii.String(fmt.Sprint(memory*8/10, "MiB"))},
		PortMappings: &[]*awsecs.PortMapping{{ContainerPort: jsii.Number(rlsPort)},
			{ContainerPort: jsii.Number(rlsHealthPort)}},
		Logging: awsecs.LogDrivers_AwsLogs(&awsecs.AwsLogDriverProps{StreamPrefix: jsii.String("sluice"),
			LogGroup: awslogs.NewLogGroup(s.Construct, jsii.String("Logs"), &awslogs.LogGroupProps{
				Retention: awslogs.RetentionDays_ONE_MONTH, RemovalPolicy: awscdk.RemovalPolicy_DESTROY})}),
	})
	s.Task = task
}

func (s *RateLimitService) addBalancer(
	p *RateLimitServiceProps, group awsec2.ISecurityGroup, service awsecs.FargateService,
) {
	balancer := balancing.NewNetworkLoadBalancer(s.Construct, jsii.String("Balancer"),
		&balancing.NetworkLoadBalancerProps{Vpc: p.VPC, InternetFacing: jsii.Bool(false),
			CrossZoneEnabled: jsii.Bool(true), SecurityGroups: &[]awsec2.ISecurityGroup{group}})
	balancer.AddListener(jsii.String("Listener"), &balancing.BaseNetworkListenerProps{Port: jsii.Number(rlsPort)}).
		AddTargets(jsii.String("Tasks"), &balancing.AddNetworkTargetsProps{
			Port: jsii.Number(rlsPort),
			Targets: &[]balancing.INetworkLoadBalancerTarget{service.LoadBalancerTarget(
				&awsecs.LoadBalancerTargetOptions{ContainerName: jsii.String("sluice"),
					ContainerPort: jsii.Number(rlsPort)})},
			// connections that are open stay open until the task ends them
			DeregistrationDelay: awscdk.Duration_Seconds(jsii.Number(rlsStopSeconds)),
			HealthCheck: &balancing.HealthCheck{Protocol: balancing.Protocol_HTTP, Path: jsii.String("/healthcheck"),
				Port:                    jsii.String(fmt.Sprint(rlsHealthPort)),
				Interval:                awscdk.Duration_Seconds(jsii.Number(rlsCheckSeconds)),
				UnhealthyThresholdCount: jsii.Number(3)},
		})
	s.Address = balancer.LoadBalancerDnsName()
}
