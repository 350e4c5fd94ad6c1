// Package aws is the folder of small adapters to AWS: region, credentials and clients of a function (awsenv), its
// settings (environ) and its start (function), what each function is deployed with (grants), passwords for ElastiCache
// (elasticache), and the URLs of API Gateway (executeapi).
package aws
