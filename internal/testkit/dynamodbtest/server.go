package dynamodbtest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// Need returns the address of the DynamoDB in SLUICE_DYNAMODB; scripts/dynamodb-local.sh prints it. If the variable is
// not set, the test is skipped, or fails if REQUIRE_STORES names dynamodb.
func Need(tb testing.TB) string {
	tb.Helper()
	url := os.Getenv("SLUICE_DYNAMODB")
	if url == "" {
		const message = "no DynamoDB: set SLUICE_DYNAMODB=$(scripts/dynamodb-local.sh)"
		if slices.Contains(strings.Split(os.Getenv("REQUIRE_STORES"), ","), "dynamodb") {
			tb.Fatal(message)
		}
		tb.Skip(message)
	}
	return url
}

// Endpoint returns the address of a DynamoDB on this machine: SLUICE_DYNAMODB, or the one that
// scripts/dynamodb-local.sh starts or finds running.
func Endpoint() (string, error) {
	if url := os.Getenv("SLUICE_DYNAMODB"); url != "" {
		return url, nil
	}
	script, err := repositoryFile("scripts/dynamodb-local.sh")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(script) //nolint:gosec // the path is part of this repository
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("start DynamoDB Local: %w: %s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// repositoryFile returns the path of a file of this repository, in which the working folder must be. The path of this
// source file cannot be used, because programs that are built with -trimpath do not contain it.
func repositoryFile(name string) (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is in no folder above the working folder %s", name, start)
		}
	}
}

// Connect returns a client with connections of its own. done closes those that are idle.
func Connect(endpoint string) (c *sdk.Client, done func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 128}
	return sdk.New(sdk.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String(endpoint), HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}), transport.CloseIdleConnections
}
