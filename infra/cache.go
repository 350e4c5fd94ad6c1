package infra

import (
	"strconv"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awselasticache"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssecretsmanager"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

const (
	cacheEngine   = "valkey"
	cacheVersion  = "8.2"
	cacheFamily   = "valkey8"
	replicas      = 1  // per shard, in another zone than the primary
	passwordChars = 64 // letters and digits; ElastiCache accepts 16 to 128
	cacheUserName = "sluice"
)

// cache is the Valkey or Redis cache in which a full cell counts rates.
type cache struct {
	Construct constructs.Construct // nil if the cache existed before

	group    awselasticache.CfnReplicationGroup // nil if the cache existed before
	endpoint string                             // host:port; a CDK token if the cache is made here
	password awssecretsmanager.Secret           // nil if no password is made

	name, user string // with AuthIAM: the names of the replication group and of its user
	secret     string // with AuthSecret: the name of the secret with user name and password
}

// newCache returns the cache of a full cell. It makes one unless the deployment file names an existing cache.
func newCache(scope constructs.Construct, p *place, n *network) *cache {
	if of := p.cell.Cache; of.Endpoint != "" {
		return &cache{endpoint: of.Endpoint, name: of.Name, user: of.User, secret: of.Secret}
	}
	return makeCache(scope, p, n)
}

// makeCache makes the replication group of a full cell. The group has a fixed name. CloudFormation therefore refuses a
// change that needs a new group, instead of making one and losing all counters. When the stack is deleted, a snapshot
// is taken, because some counters are of windows as long as a day.
func makeCache(scope constructs.Construct, p *place, n *network) *cache {
	of, name := p.cell.Cache, p.name(config.Cache)
	c := &cache{Construct: constructs.NewConstruct(scope, jsii.String("Cache")), name: name, user: name, secret: name}
	subnets := awselasticache.NewCfnSubnetGroup(c.Construct, jsii.String("Subnets"),
		&awselasticache.CfnSubnetGroupProps{
			CacheSubnetGroupName: &name, Description: jsii.String("Sluice: " + name), SubnetIds: toAny(n.subnets),
		})
	// an evicted counter would let a tenant exceed its limit
	settings := map[string]any{"maxmemory-policy": "noeviction"}
	if of.Cluster {
		settings["cluster-enabled"] = "yes"
	}
	parameters := awselasticache.NewCfnParameterGroup(c.Construct, jsii.String("Parameters"),
		&awselasticache.CfnParameterGroupProps{
			CacheParameterGroupFamily: jsii.String(cacheFamily), Description: jsii.String("Sluice: " + name),
			Properties: settings,
		})
	props := &awselasticache.CfnReplicationGroupProps{
		ReplicationGroupId: &name, ReplicationGroupDescription: jsii.String("Sluice: counters of cell " + p.cell.ID),
		Engine: jsii.String(cacheEngine), EngineVersion: jsii.String(cacheVersion), CacheNodeType: &of.Node,
		Port:                    jsii.Number(redisPort),
		CacheParameterGroupName: parameters.Ref(), CacheSubnetGroupName: subnets.Ref(),
		SecurityGroupIds:         &[]*string{n.cache},
		UserGroupIds:             &[]*string{c.users(p, name).Ref()},
		AutomaticFailoverEnabled: jsii.Bool(true), MultiAzEnabled: jsii.Bool(true),
		AutoMinorVersionUpgrade:  jsii.Bool(true),
		TransitEncryptionEnabled: jsii.Bool(true), TransitEncryptionMode: jsii.String("required"),
		AtRestEncryptionEnabled: jsii.Bool(true),
		SnapshotRetentionLimit:  jsii.Number(of.SnapshotDays),
	}
	if of.Cluster {
		props.ClusterMode, props.NumNodeGroups, props.ReplicasPerNodeGroup = jsii.String("enabled"),
			jsii.Number(of.Shards), jsii.Number(replicas)
	} else {
		props.ClusterMode, props.NumCacheClusters = jsii.String("disabled"), jsii.Number(1+replicas)
	}
	c.group = awselasticache.NewCfnReplicationGroup(c.Construct, jsii.String("Group"), props)
	host, port := c.group.AttrPrimaryEndPointAddress(), c.group.AttrPrimaryEndPointPort()
	if of.Cluster {
		host, port = c.group.AttrConfigurationEndPointAddress(), c.group.AttrConfigurationEndPointPort()
		// shards are added to the same cache, without replacing it
		c.group.CfnOptions().SetUpdatePolicy(&awscdk.CfnUpdatePolicy{UseOnlineResharding: jsii.Bool(true)})
	}
	c.endpoint = *host + ":" + *port
	c.group.ApplyRemovalPolicy(awscdk.RemovalPolicy_SNAPSHOT, nil)
	return c
}

// users makes the cache's only user, and the user group that contains it.
func (c *cache) users(p *place, name string) awselasticache.CfnUserGroup {
	props := &awselasticache.CfnUserProps{
		UserId: &name, UserName: &name, Engine: jsii.String(cacheEngine), AccessString: jsii.String(grants.CacheAccess),
		AuthenticationMode: map[string]any{"Type": "iam"}, // IAM authentication requires that id and name are equal
	}
	if p.cell.Cache.Auth == config.AuthSecret {
		c.password = awssecretsmanager.NewSecret(c.Construct, jsii.String("Password"), &awssecretsmanager.SecretProps{
			SecretName: &name, Description: jsii.String("Sluice: who the functions of cell " + p.cell.ID +
				" are to its cache"),
			GenerateSecretString: &awssecretsmanager.SecretStringGenerator{
				SecretStringTemplate: jsii.String(`{"username":"` + cacheUserName + `"}`),
				GenerateStringKey:    jsii.String("password"),
				PasswordLength:       jsii.Number(passwordChars), ExcludePunctuation: jsii.Bool(true),
				IncludeSpace: jsii.Bool(false),
			},
			RemovalPolicy: awscdk.RemovalPolicy_DESTROY, // it is of use for this cache only
		})
		props.UserName = jsii.String(cacheUserName)
		props.AuthenticationMode = map[string]any{"Type": "password",
			"Passwords": []*string{c.password.SecretValueFromJson(jsii.String("password")).UnsafeUnwrap()}}
	}
	user := awselasticache.NewCfnUser(c.Construct, jsii.String("User"), props)
	return awselasticache.NewCfnUserGroup(c.Construct, jsii.String("Users"), &awselasticache.CfnUserGroupProps{
		UserGroupId: &name, Engine: jsii.String(cacheEngine), UserIds: &[]*string{user.Ref()},
	})
}

// variables returns the environment variables by which functions find the cache.
func (c *cache) variables(p *place) map[string]string {
	of := p.cell.Cache
	all := map[string]string{
		"SLUICE_REDIS": c.endpoint, "SLUICE_REDIS_CLUSTER": strconv.FormatBool(of.Cluster),
		"SLUICE_REDIS_TLS":  strconv.FormatBool(!of.PlainText),
		"SLUICE_REDIS_AUTH": of.Auth,
	}
	switch of.Auth {
	case config.AuthSecret:
		all["SLUICE_REDIS_SECRET"] = c.secret
	case config.AuthIAM:
		all["SLUICE_REDIS_IAM_CACHE"], all["SLUICE_REDIS_IAM_USER"] = c.name, c.user
	}
	return all
}
