package infra

import (
	"slices"
	"strconv"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsec2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

const (
	redisPort = 6379 // of the cache that is made here
	httpsPort = 443
	world     = "0.0.0.0/0" // every IPv4 address
)

// network is the VPC of a full cell, with the security groups of its cache and of the functions that call the cache.
type network struct {
	Construct constructs.Construct

	vpc      *string
	subnets  []*string // private subnets, one in each zone
	routes   []*string // the route tables of the subnets; empty if the VPC existed before
	function *string   // the security group of functions
	cache    *string   // the security group of the cache; nil if the cache existed before and its group is not known
}

// newNetwork makes or imports the network of a full cell. It does not use CDK's construct for a VPC, because that
// construct looks up the account's zones when templates are made, so that templates differ between accounts.
func newNetwork(scope constructs.Construct, p *place) *network {
	n := &network{Construct: constructs.NewConstruct(scope, jsii.String("Network"))}
	of := p.cell.Network
	if of.VPC == "" {
		n.createVPC(p)
	} else {
		n.vpc = &of.VPC
		for _, id := range of.Subnets {
			n.subnets = append(n.subnets, &id)
		}
	}
	n.securityGroups(p)
	if of.VPC == "" {
		n.endpoints(p)
	}
	return n
}

// createVPC makes the VPC, a private subnet in each zone, and NAT gateways if the deployment file asks for them.
// Assumption: quotas.
func (n *network) createVPC(p *place) {
	of, tags := p.cell.Network, n.nameTags(p)
	private, public := of.Ranges()
	vpc := awsec2.NewCfnVPC(n.Construct, jsii.String("VPC"), &awsec2.CfnVPCProps{
		// interface endpoints need private DNS names
		CidrBlock: &of.CIDR, EnableDnsSupport: jsii.Bool(true), EnableDnsHostnames: jsii.Bool(true), Tags: tags,
	})
	n.vpc = vpc.Ref()
	if of.FlowLogs {
		n.flowLogs(p)
	}
	var out *gateway
	if of.Egress == config.EgressNAT {
		out = n.gateway(tags)
	}
	for i, cidr := range private {
		zone := strconv.Itoa(i + 1)
		subnet, routes := n.subnet("Private"+zone, i, cidr, tags)
		if out != nil {
			out.nat(n, zone, i, public[i], routes, tags)
		}
		n.subnets, n.routes = append(n.subnets, subnet), append(n.routes, routes)
	}
}

// flowLogs makes the VPC write its connections to CloudWatch Logs.
func (n *network) flowLogs(p *place) {
	name := "/aws/vpc/" + p.names.Cell(p.cell.ID, "network")
	group := newLogGroup(n.Construct, "FlowLogs", name, p)
	role := awsiam.NewRole(n.Construct, jsii.String("FlowLogsRole"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewServicePrincipal(jsii.String("vpc-flow-logs.amazonaws.com"), nil),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"logs": awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{
			Statements: &[]awsiam.PolicyStatement{awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Actions: jsii.Strings("logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogGroups",
					"logs:DescribeLogStreams"),
				Resources: jsii.Strings(p.names.ARN("logs", p.cell.Region, "log-group:"+name+":*")),
			})},
		})},
	})
	awsec2.NewCfnFlowLog(n.Construct, jsii.String("FlowLog"), &awsec2.CfnFlowLogProps{
		ResourceType: jsii.String("VPC"), ResourceId: n.vpc, TrafficType: jsii.String("ALL"),
		LogDestinationType: jsii.String("cloud-watch-logs"), LogGroupName: group.LogGroupName(),
		DeliverLogsPermissionArn: role.RoleArn(), Tags: n.nameTags(p),
	})
}

// nameTags returns the tag Name, for resources that have no name of their own.
func (n *network) nameTags(p *place) *[]*awscdk.CfnTag {
	return &[]*awscdk.CfnTag{{Key: jsii.String("Name"), Value: jsii.String(p.names.Cell(p.cell.ID, "network"))}}
}

// subnet makes a subnet in a zone, and its route table. Hosts in the subnet get no public addresses.
func (n *network) subnet(id string, zone int, cidr string, tags *[]*awscdk.CfnTag) (subnet, routes *string) {
	zones := awscdk.Fn_GetAzs(awscdk.Aws_REGION())
	s := awsec2.NewCfnSubnet(n.Construct, &id, &awsec2.CfnSubnetProps{
		VpcId: n.vpc, CidrBlock: &cidr, AvailabilityZone: awscdk.Fn_Select(jsii.Number(zone), zones),
		MapPublicIpOnLaunch: jsii.Bool(false), Tags: tags,
	})
	t := awsec2.NewCfnRouteTable(n.Construct, jsii.String(id+"Routes"), &awsec2.CfnRouteTableProps{VpcId: n.vpc,
		Tags: tags})
	awsec2.NewCfnSubnetRouteTableAssociation(n.Construct, jsii.String(id+"RoutesOf"),
		&awsec2.CfnSubnetRouteTableAssociationProps{SubnetId: s.Ref(), RouteTableId: t.Ref()})
	return s.Ref(), t.Ref()
}

// gateway is the VPC's internet gateway.
type gateway struct {
	id       *string
	attached awsec2.CfnVPCGatewayAttachment
}

func (n *network) gateway(tags *[]*awscdk.CfnTag) *gateway {
	internet := awsec2.NewCfnInternetGateway(n.Construct, jsii.String("Internet"),
		&awsec2.CfnInternetGatewayProps{Tags: tags})
	return &gateway{internet.Ref(), awsec2.NewCfnVPCGatewayAttachment(n.Construct, jsii.String("InternetOf"),
		&awsec2.CfnVPCGatewayAttachmentProps{
			VpcId: n.vpc, InternetGatewayId: internet.Ref(),
		})}
}

// nat makes the NAT gateway of a zone in a public subnet that contains nothing else, and a route to it from the private
// subnet.
func (g *gateway) nat(n *network, zone string, i int, cidr string, private *string, tags *[]*awscdk.CfnTag) {
	subnet, routes := n.subnet("Public"+zone, i, cidr, tags)
	awsec2.NewCfnRoute(n.Construct, jsii.String("Public"+zone+"Out"), &awsec2.CfnRouteProps{
		RouteTableId: routes, DestinationCidrBlock: jsii.String(world), GatewayId: g.id,
	}).AddResourceDependency(g.attached, nil)
	address := awsec2.NewCfnEIP(n.Construct, jsii.String("Address"+zone),
		&awsec2.CfnEIPProps{Domain: jsii.String("vpc"), Tags: tags})
	address.AddResourceDependency(g.attached, nil)
	nat := awsec2.NewCfnNatGateway(n.Construct, jsii.String("NAT"+zone), &awsec2.CfnNatGatewayProps{
		SubnetId: subnet, AllocationId: address.AttrAllocationId(), Tags: tags,
	})
	awsec2.NewCfnRoute(n.Construct, jsii.String("Private"+zone+"Out"), &awsec2.CfnRouteProps{
		RouteTableId: private, DestinationCidrBlock: jsii.String(world), NatGatewayId: nat.Ref(),
	})
}

// securityGroups makes the security groups. Functions may call the cache, and port 443 of any address that a route
// reaches. The rule cannot be narrower, because the addresses of the gateway endpoint of DynamoDB are public, and their
// prefix list has another id in each region. The cache accepts calls of the functions, and calls nobody.
func (n *network) securityGroups(p *place) {
	tags := n.nameTags(p)
	function := awsec2.NewCfnSecurityGroup(n.Construct, jsii.String("Functions"), &awsec2.CfnSecurityGroupProps{
		GroupDescription: jsii.String("Sluice: functions of cell " + p.cell.ID), VpcId: n.vpc, Tags: tags,
		SecurityGroupEgress: []any{&awsec2.CfnSecurityGroup_EgressProperty{
			IpProtocol: jsii.String("tcp"), FromPort: jsii.Number(httpsPort), ToPort: jsii.Number(httpsPort),
			CidrIp:      jsii.String(world),
			Description: jsii.String("Services of AWS, and issuers where there is a way out"),
		}},
	})
	n.function = function.AttrGroupId()
	port := float64(redisPort)
	switch of := p.cell.Cache; {
	case of.Endpoint == "":
		n.cache = awsec2.NewCfnSecurityGroup(n.Construct, jsii.String("Cache"), &awsec2.CfnSecurityGroupProps{
			GroupDescription: jsii.String("Sluice: cache of cell " + p.cell.ID), VpcId: n.vpc, Tags: tags,
			SecurityGroupEgress: noEgress(),
		}).AttrGroupId()
	case of.SecurityGroup != "":
		n.cache, port = &of.SecurityGroup, float64(of.Port())
	default:
		port = float64(of.Port())
	}
	n.allowCache(port)
}

// allowCache lets the functions call the cache, and the cache accept their calls. If the cache existed before and its
// security group is not known, its owner has to let the functions in, and the functions may call the cache's port at
// any address that a route reaches.
func (n *network) allowCache(port float64) {
	props := &awsec2.CfnSecurityGroupEgressProps{
		GroupId: n.function, IpProtocol: jsii.String("tcp"), FromPort: &port, ToPort: &port,
		DestinationSecurityGroupId: n.cache, Description: jsii.String("The cache"),
	}
	if n.cache == nil {
		props.CidrIp = jsii.String(world)
	}
	awsec2.NewCfnSecurityGroupEgress(n.Construct, jsii.String("FunctionsToCache"), props)
	if n.cache != nil {
		n.allowFunctions("CacheFromFunctions", n.cache, port)
	}
}

// noEgress returns an egress rule that allows no connection. A security group without any egress rule would allow all
// connections.
func noEgress() []any {
	return []any{&awsec2.CfnSecurityGroup_EgressProperty{
		IpProtocol: jsii.String("icmp"), FromPort: jsii.Number(252), ToPort: jsii.Number(86),
		CidrIp:      jsii.String("255.255.255.255/32"),
		Description: jsii.String("Nobody"),
	}}
}

func (n *network) allowFunctions(id string, group *string, port float64) {
	awsec2.NewCfnSecurityGroupIngress(n.Construct, &id, &awsec2.CfnSecurityGroupIngressProps{
		GroupId: group, IpProtocol: jsii.String("tcp"), FromPort: &port, ToPort: &port,
		SourceSecurityGroupId: n.function,
		Description:           jsii.String("The functions"),
	})
}

// endpoints makes the VPC endpoints of the services that functions in the VPC call. Each endpoint accepts only calls of
// this account on this deployment's resources. S3 has no endpoint, because no function in the VPC calls it.
func (n *network) endpoints(p *place) {
	tables := p.names.ARN("dynamodb", p.cell.Region, "table/"+p.names.Prefix+"-*")
	awsec2.NewCfnVPCEndpoint(n.Construct, jsii.String("DynamoDB"), &awsec2.CfnVPCEndpointProps{
		VpcId: n.vpc, VpcEndpointType: jsii.String("Gateway"), ServiceName: service(p, "dynamodb"),
		RouteTableIds:  toAny(n.routes),
		PolicyDocument: n.policy(p, vpcActions(grants.Counters, grants.Config, grants.Operations), tables),
	})
	group := awsec2.NewCfnSecurityGroup(n.Construct, jsii.String("Endpoints"), &awsec2.CfnSecurityGroupProps{
		GroupDescription: jsii.String("Sluice: endpoints of cell " + p.cell.ID), VpcId: n.vpc, Tags: n.nameTags(p),
		SecurityGroupEgress: noEgress(),
	})
	n.allowFunctions("EndpointsFromFunctions", group.AttrGroupId(), httpsPort)
	n.endpoint(p, "Secrets", "secretsmanager", group, n.policy(p, vpcActions(grants.Secret, grants.Login),
		p.names.ARN("secretsmanager", p.cell.Region, "secret:"+p.names.Prefix+"-*")))
	if !p.cell.NoKillSwitch {
		n.endpoint(p, "KillSwitch", "appconfigdata", group, n.policy(p, vpcActions(grants.Switch),
			p.names.ARN("appconfig", p.cell.Region, "application/*")))
	}
}

// endpoint makes an interface endpoint with one network interface in each zone. The service keeps its usual DNS name.
func (n *network) endpoint(p *place, id, name string, group awsec2.CfnSecurityGroup, policy awsiam.PolicyDocument) {
	awsec2.NewCfnVPCEndpoint(n.Construct, &id, &awsec2.CfnVPCEndpointProps{
		VpcId: n.vpc, VpcEndpointType: jsii.String("Interface"), ServiceName: service(p, name),
		SubnetIds:        toAny(n.subnets),
		SecurityGroupIds: &[]any{group.AttrGroupId()}, PrivateDnsEnabled: jsii.Bool(true), PolicyDocument: policy,
	})
}

func service(p *place, name string) *string {
	return jsii.String("com.amazonaws." + p.cell.Region + "." + name)
}

// policy returns an endpoint policy that lets this account take the given actions. The roles of the functions allow
// less. The policy names the account in a condition, because gateway endpoints accept no principals but "*".
func (n *network) policy(p *place, actions []string, resources ...string) awsiam.PolicyDocument {
	return awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{
		awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
			Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()}, Actions: jsii.Strings(actions...),
			Resources:  jsii.Strings(resources...),
			Conditions: &map[string]any{"StringEquals": map[string]any{"aws:PrincipalAccount": p.names.Account}},
		})}})
}

// callsCache reports whether a function calls the cache. Exactly these functions are in the VPC of a full cell.
func (f *function) callsCache() bool {
	return slices.ContainsFunc(f.spec.Grants, func(g grants.Grant) bool { return g.On == grants.Cache })
}

// vpcActions returns the actions that functions in the VPC may take on some kinds of resources, each action once.
func vpcActions(kinds ...grants.Resource) (all []string) {
	for _, f := range grants.Functions() {
		if one := (function{spec: f}); !one.callsCache() {
			continue
		}
		for _, g := range f.Grants {
			if slices.Contains(kinds, g.On) {
				all = append(all, g.Actions...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// connect puts a function into the network.
func (n *network) connect(f *function) {
	f.lambda.Node().DefaultChild().(awslambda.CfnFunction).SetVpcConfig(&awslambda.CfnFunction_VpcConfigProperty{
		SubnetIds: &n.subnets, SecurityGroupIds: &[]*string{n.function},
	})
}

func toAny(texts []*string) *[]any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return &all
}
