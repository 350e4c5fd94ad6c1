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
	redisPort = 6379
	httpsPort = 443
	world     = "0.0.0.0/0"
)

// network is where the cache of a full cell is, and the functions that call it.
type network struct {
	Construct constructs.Construct

	vpc      *string
	subnets  []*string // private ones, one in each zone
	routes   []*string // their route tables; none of a VPC that was there already
	function *string   // the security group of functions
	cache    *string   // that of the cache; nil of one that was there already and is let in by its owner
}

// newNetwork makes the network of a cell. It has no construct of CDK's for a VPC: that one looks the account's zones up
// when templates are made, which then differ from one account to another.
func newNetwork(scope constructs.Construct, p *place) *network {
	n := &network{Construct: constructs.NewConstruct(scope, jsii.String("Network"))}
	of := p.cell.Network
	if of.VPC == "" {
		n.make(p)
	} else {
		n.vpc = &of.VPC
		for _, id := range of.Subnets {
			n.subnets = append(n.subnets, &id)
		}
	}
	n.groups(p)
	if of.VPC == "" {
		n.endpoints(p)
	}
	return n
}

// make makes the VPC, a private subnet in each zone, and the way out where there is to be one. Assumption: quotas.
func (n *network) make(p *place) {
	of, tags := p.cell.Network, n.named(p)
	private, public := of.Ranges()
	vpc := awsec2.NewCfnVPC(n.Construct, jsii.String("VPC"), &awsec2.CfnVPCProps{
		// endpoints have private names
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

// flowLogs has the VPC's connections written to CloudWatch Logs.
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
		DeliverLogsPermissionArn: role.RoleArn(), Tags: n.named(p),
	})
}

// named are the tags of what has no name of its own.
func (n *network) named(p *place) *[]*awscdk.CfnTag {
	return &[]*awscdk.CfnTag{{Key: jsii.String("Name"), Value: jsii.String(p.names.Cell(p.cell.ID, "network"))}}
}

// subnet makes the subnet of a zone, whose hosts have no public addresses, and its route table.
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

// gateway is the way to the world.
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

// nat makes the NAT gateway of a zone, in a public subnet that has nothing else, and the private subnet's way to it.
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

// groups make the security groups: functions may call the cache and https, the cache is called by the functions and
// calls nobody. Https goes as far as there are routes: the addresses of a gateway endpoint are public ones, and their
// list has another id in each region.
func (n *network) groups(p *place) {
	tags := n.named(p)
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
			SecurityGroupEgress: nobodyCalled(),
		}).AttrGroupId()
	case of.SecurityGroup != "":
		n.cache, port = &of.SecurityGroup, float64(of.Port())
	default:
		port = float64(of.Port())
	}
	n.toCache(port)
}

// toCache lets functions call the cache, and the cache take their calls. Where the group of one that was there already
// is not known, its owner lets them in, and its port may be called as far as there are routes, like https.
func (n *network) toCache(port float64) {
	props := &awsec2.CfnSecurityGroupEgressProps{
		GroupId: n.function, IpProtocol: jsii.String("tcp"), FromPort: &port, ToPort: &port,
		DestinationSecurityGroupId: n.cache, Description: jsii.String("The cache"),
	}
	if n.cache == nil {
		props.CidrIp = jsii.String(world)
	}
	awsec2.NewCfnSecurityGroupEgress(n.Construct, jsii.String("FunctionsToCache"), props)
	if n.cache != nil {
		n.fromFunctions("CacheFromFunctions", n.cache, port)
	}
}

// nobodyCalled is an egress that reaches nobody: without one, a group may call everybody.
func nobodyCalled() []any {
	return []any{&awsec2.CfnSecurityGroup_EgressProperty{
		IpProtocol: jsii.String("icmp"), FromPort: jsii.Number(252), ToPort: jsii.Number(86),
		CidrIp:      jsii.String("255.255.255.255/32"),
		Description: jsii.String("Nobody"),
	}}
}

func (n *network) fromFunctions(id string, group *string, port float64) {
	awsec2.NewCfnSecurityGroupIngress(n.Construct, &id, &awsec2.CfnSecurityGroupIngressProps{
		GroupId: group, IpProtocol: jsii.String("tcp"), FromPort: &port, ToPort: &port,
		SourceSecurityGroupId: n.function,
		Description:           jsii.String("The functions"),
	})
}

// endpoints are the ways to the services that functions in the VPC call. Each takes calls of this account on this
// deployment's resources only. S3 has none: no function in the VPC calls it.
func (n *network) endpoints(p *place) {
	tables := p.names.ARN("dynamodb", p.cell.Region, "table/"+p.names.Prefix+"-*")
	awsec2.NewCfnVPCEndpoint(n.Construct, jsii.String("DynamoDB"), &awsec2.CfnVPCEndpointProps{
		VpcId: n.vpc, VpcEndpointType: jsii.String("Gateway"), ServiceName: service(p, "dynamodb"),
		RouteTableIds:  anys(n.routes),
		PolicyDocument: n.policy(p, calls(grants.Counters, grants.Config, grants.Operations), tables),
	})
	group := awsec2.NewCfnSecurityGroup(n.Construct, jsii.String("Endpoints"), &awsec2.CfnSecurityGroupProps{
		GroupDescription: jsii.String("Sluice: endpoints of cell " + p.cell.ID), VpcId: n.vpc, Tags: n.named(p),
		SecurityGroupEgress: nobodyCalled(),
	})
	n.fromFunctions("EndpointsFromFunctions", group.AttrGroupId(), httpsPort)
	n.endpoint(p, "Secrets", "secretsmanager", group, n.policy(p, calls(grants.Secret, grants.Login),
		p.names.ARN("secretsmanager", p.cell.Region, "secret:"+p.names.Prefix+"-*")))
	if !p.cell.NoKillSwitch {
		n.endpoint(p, "KillSwitch", "appconfigdata", group, n.policy(p, calls(grants.Switch),
			p.names.ARN("appconfig", p.cell.Region, "application/*")))
	}
}

// endpoint makes an interface in each zone, by the name that the service has everywhere.
func (n *network) endpoint(p *place, id, name string, group awsec2.CfnSecurityGroup, policy awsiam.PolicyDocument) {
	awsec2.NewCfnVPCEndpoint(n.Construct, &id, &awsec2.CfnVPCEndpointProps{
		VpcId: n.vpc, VpcEndpointType: jsii.String("Interface"), ServiceName: service(p, name),
		SubnetIds:        anys(n.subnets),
		SecurityGroupIds: &[]any{group.AttrGroupId()}, PrivateDnsEnabled: jsii.Bool(true), PolicyDocument: policy,
	})
}

func service(p *place, name string) *string {
	return jsii.String("com.amazonaws." + p.cell.Region + "." + name)
}

// policy lets this account do what functions do, each of which may do less. Gateway endpoints know principals by
// conditions only.
func (n *network) policy(p *place, actions []string, resources ...string) awsiam.PolicyDocument {
	return awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()}, Actions: jsii.Strings(actions...),
		Resources:  jsii.Strings(resources...),
		Conditions: &map[string]any{"StringEquals": map[string]any{"aws:PrincipalAccount": p.names.Account}},
	})}})
}

// callsCache reports whether a function is to be in the VPC of a full cell: those that call the cache are, and no
// other.
func (f *function) callsCache() bool {
	return slices.ContainsFunc(f.of.Grants, func(g grants.Grant) bool { return g.On == grants.Cache })
}

// calls are the actions that functions in the VPC may take on those kinds of resources, each once.
func calls(kinds ...grants.Resource) (all []string) {
	for _, f := range grants.Functions() {
		if one := (function{of: f}); !one.callsCache() {
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

// hold puts a function into the network.
func (n *network) hold(f *function) {
	f.lambda.Node().DefaultChild().(awslambda.CfnFunction).SetVpcConfig(&awslambda.CfnFunction_VpcConfigProperty{
		SubnetIds: &n.subnets, SecurityGroupIds: &[]*string{n.function},
	})
}

func anys(texts []*string) *[]any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return &all
}
