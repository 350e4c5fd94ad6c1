# All commands of developers and of CI. CI calls only these targets, so a failure in CI can be repeated here.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-builtin-rules

FUZZTIME ?= 30s
ONLY     ?=
export FUZZTIME DEPLOYMENT

# The race detector needs a C compiler. Without one the tests run without it, with a message.
RACE = $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race)

.PHONY: help
help: ## Show this list (default)
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/sluice for this machine; what go run has compiled is not compiled again
	go build -o bin/sluice ./cmd/sluice

.PHONY: build-arm64
build-arm64: ## Build dist/linux-arm64/sluice, for Graviton
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -trimpath -o dist/linux-arm64/sluice ./cmd/sluice

.PHONY: lambdas
lambdas: ## Build the Lambdas for arm64 or ARCH=amd64 into dist/lambdas (PLANS=FILE, ISSUERS=FILE: for the authorizer)
	@ARCH='$(ARCH)' PLANS='$(PLANS)' ISSUERS='$(ISSUERS)' scripts/lambdas

.PHONY: lambdas-twice
lambdas-twice: ## Build each Lambda twice, in two folders with two build caches, and compare the bytes
	@scripts/lambdas --twice

# The version that the next release has is the one of the root's module that the other modules require.
VERSION ?= $(shell sed -n 's|.*github.com/sluicelimits/sluice \(v[^ ]*\).*|\1|p' infra/go.mod)

.PHONY: release
release: ## Make the release VERSION of this commit in dist/release, for all platforms (docs/release.md)
	@VERSION='$(VERSION)' TARGETS='$(TARGETS)' PUBLISH='$(PUBLISH)' scripts/release

.PHONY: release-test
release-test: export TARGETS = linux_$(shell go env GOARCH)
release-test: ## Make the release for this machine alone, and test it from outside: archive, package, image, modules
	@VERSION='$(VERSION)' scripts/release
	@VERSION='$(VERSION)' SLUICE_RELEASE=$(CURDIR)/dist/release SLUICE_RELEASE_VERSION='$(VERSION)' \
	go test -count=1 -v ./internal/testkit/releasetest

.PHONY: synth
synth: ## Make the CDK templates of DEPLOYMENT (infra/deployment.yaml) in infra/cdk.out; build missing Lambdas
	@scripts/cdk --lambdas missing synth --quiet $(CDKFLAGS)

.PHONY: deploy
deploy: ## Build the Lambdas, deploy DEPLOYMENT to the account of AWS_PROFILE, stack by stack (CDKFLAGS=...)
	@scripts/cdk --lambdas all deploy --all --concurrency 1 $(CDKFLAGS)

.PHONY: dry-run
dry-run: ## Have AWS validate each policy and prepare a change set of each stack of DEPLOYMENT, and execute none
	@scripts/dry-run

.PHONY: test-infra
test-infra: ## Test infra and its templates, which stay in dist/templates (needs Node.js)
	rm -rf dist/templates && mkdir -p dist/templates
	cd infra && SLUICE_TEMPLATES=$(CURDIR)/dist/templates \
	JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION=$$(node -p 'process.versions.node.split(".")[0]') \
	go test -shuffle=on ./...

.PHONY: cfn-lint
cfn-lint: test-infra ## Run AWS's linter on every template that the tests made (needs Python 3)
	@scripts/cfn-lint dist/templates

.PHONY: dev
dev: ## Start all of Sluice in one process, with the example plan
	go run ./cmd/sluice dev

.PHONY: check
check: lint test bench-smoke ## Everything that must pass before a merge; needs neither Docker nor AWS

# Folders with Go modules of their own.
NESTED = ':!bench' ':!browser' ':!examples' ':!infra'

# How many packages are tested at once: more than there are processors, because the longest tests mostly wait.
PACKAGES = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)))

.PHONY: quick
quick: ## The short tests of every package and module, without the race detector; no result from a cache
	@LONGEST='$(LONGEST)' scripts/quick

# The packages whose tests take longest, these first: go test begins packages in the order of its arguments, and one of
# these at the end would leave a processor idle.
LONGEST = ./cmd/sluice ./internal/limiter/store/dynamodb ./internal/testkit/endtoend ./internal/limiter/lease \
	./internal/limiter/store/redis ./pacer ./internal/limiter/resilience ./internal/limiter/store/memory \
	./internal/limiter/limit ./internal/plan/shares ./internal/server ./internal/testkit/standin ./streams/balancer
SHORTENED = $(shell scripts/shortened packages)

# `make lint` runs go vet. At the end of each process the race detector waits a second for late races: two minutes for
# all packages. Programs without debugging information (-s -w) take two thirds of the time to link; what a panic and a
# race report show does not depend on it. Garbage is collected less often than usual (GOGC=100), as in `make quick`.
TESTFLAGS = -vet=off -p $(PACKAGES) -ldflags='-s -w' -shuffle=on -timeout=30m
test: export GORACE := $(GORACE) atexit_sleep_ms=50
test: export GOGC := $(or $(GOGC),400)

# The race detector makes computations seven times as slow, so tests run short under it. The tests that do less then, or
# nothing, run once more in full without it: those that scripts/shortened names. Random tests make a quarter of their
# cases there; with SOAK=1 they make all of them, as in CI. The test that floods a service runs last and alone: beside
# other tests the callers of the service wait for a processor, and not for the service.
.PHONY: test
test: ## Run the tests in random order with the race detector, some once more in full without it (SOAK=1: see soak)
	$(if $(RACE),,@echo 'make test: no C compiler, so the tests run without the race detector' >&2)
	go test $(TESTFLAGS) $(if $(RACE),-race -short) $(LONGEST) ./...
	$(if $(RACE),$(if $(SOAK),SLUICE_SOAK=$(SOAK)) go test $(TESTFLAGS) \
	-run '$(shell scripts/shortened tests)' \
	$(filter-out ./cmd/sluice,$(foreach p,$(LONGEST),$(filter $(p),$(SHORTENED))) $(SHORTENED)))
	$(if $(RACE),go test $(TESTFLAGS) -run '^TestServeMemoryIsBounded$$' ./cmd/sluice)
	cd examples && go test -vet=off -shuffle=on ./...

.PHONY: soak
soak: ## Run the random tests with SOAK (10) times all of their seeds and scripts, and look for all planted mistakes
	SLUICE_SOAK=$(or $(SOAK),10) SLUICE_MISTAKES=all go test -p $(PACKAGES) -ldflags='-s -w' -count=1 -timeout=60m \
	-run '$(shell scripts/shortened tests)' $(SHORTENED)

.PHONY: paths
paths: ## Compare the readings of paths with 18 real servers, SOAK (20) times as long as CI (needs Node, Python, nginx)
	SLUICE_SERVERS=$$(scripts/servers) REQUIRE_SERVERS=1 SLUICE_SOAK=$(or $(SOAK),20) \
	go test -count=1 -timeout=60m -v -run '^TestRealServers$$' ./internal/plan/route

.PHONY: integration
integration: ## Deploy to LocalStack, without Docker, and run the tests there (TESTS='-run NAME'; docs/localstack.md)
	@localstack/integration $(TESTS)

.PHONY: envoy-demo
envoy-demo: ## Start Envoy with sluice serve on this machine, and show what a client sees: 200s, then 429s
	@scripts/envoy-demo

.PHONY: localstack
localstack: ## Deploy to LocalStack and leave it running until Ctrl-C
	@localstack/with go run ./localstack/serve

.PHONY: lint
lint: tools ## Run go vet, staticcheck, golangci-lint and gofmt; check go.mod, and that only pictures are binary
	@scripts/lint

.PHONY: vulncheck
vulncheck: tools ## Look for known vulnerabilities in called code; passes with a notice if the database is unavailable
	@scripts/vulncheck

.PHONY: tools
tools: ## Install the pinned linters into ./bin
	@scripts/tools

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@scripts/fuzz

# The packages with benchmarks. With ./... the go command would also link the tests of all other packages.
BENCHED = $(shell git grep -l --untracked '^func Benchmark' -- '*_test.go' $(NESTED) | \
	xargs -n 1 dirname | sort -u | sed 's|^|./|')

.PHONY: bench
bench: ## Run every benchmark ten times into bench.txt, to compare commits with benchstat
	go test -run='^$$' -bench=. -benchmem -count=10 ./... | tee bench.txt
	cd bench && go test -run='^$$' -bench=. -benchmem -count=10 ./... | tee -a ../bench.txt

.PHONY: bench-smoke
bench-smoke: ## Run every benchmark once, briefly, to check that each still works
	go test -run='^$$' -bench=. -benchtime=1x $(BENCHED)
	cd bench && go test -short -bench=. -benchtime=1x ./...

.PHONY: plots
plots: ## Write the plots of docs/consumer.md anew
	@go test -count=1 -run TestPlots ./pacer -plots

.PHONY: figures
figures: ## Measure Sluice and its peers, and compare with the goals (ONLY=NAME for one figure)
	@cd bench && go run ./figures $(if $(ONLY),-only $(ONLY)) $(FIGURESFLAGS)

.PHONY: figures-table
figures-table: ## Copy the output of make figures, in the file FROM, into the table of docs/benchmarks.md
	@cd bench && go run ./figures -table ../docs/benchmarks.md <'$(abspath $(FROM))'

.PHONY: lines
lines: ## Count the lines of product code and tests in each package
	@scripts/lines

.PHONY: golden
golden: ## Rewrite the golden files; read the diff afterwards
	@scripts/golden

.PHONY: browser
browser: ## Test the pages in headless Chromium (REQUIRE_BROWSER=1: fail if it is missing)
	cd browser && go test -count=1 ./...

.PHONY: picture
picture: ## Make the README's picture of the live page with headless Chromium
	mkdir -p docs/images
	cd browser && REQUIRE_BROWSER=1 SLUICE_SCREENSHOTS=$(CURDIR)/dist/pictures \
	go test -count=1 -run '^TestLivePageOfReadme$$' .
	install -m 644 dist/pictures/live-page.png docs/images/live-page.png

.PHONY: clean
clean: ## Remove build results: bin, dist, bench.txt, infra's templates and the CDK CLI
	rm -rf bin dist bench.txt infra/cdk.out infra/node_modules
