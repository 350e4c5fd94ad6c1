# Everything that people and CI run here. CI calls only these targets, so what fails there fails here.
SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-builtin-rules

FUZZTIME ?= 30s
ONLY     ?=
export FUZZTIME DEPLOYMENT

# The race detector needs a C compiler. Without one the tests still run, and say so.
RACE = $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race)

.PHONY: help
help: ## Show this list (default)
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build ./bin/sluice for this machine
	go build -trimpath -o bin/sluice ./cmd/sluice

.PHONY: build-arm64
build-arm64: ## Build dist/linux-arm64/sluice, as Graviton runs it
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -trimpath -o dist/linux-arm64/sluice ./cmd/sluice

.PHONY: lambdas
lambdas: ## Build dist/lambdas/NAME.zip of each functions/NAME, for arm64 or ARCH=amd64 (PLANS=FILE, ISSUERS=FILE: with these in the authorizer's, the plans as JSON)
	@ARCH='$(ARCH)' PLANS='$(PLANS)' ISSUERS='$(ISSUERS)' scripts/lambdas

.PHONY: lambdas-twice
lambdas-twice: ## Build each Lambda in two folders, with two build caches: the same bytes, or it fails
	@scripts/lambdas --twice

.PHONY: synth
synth: ## CDK's templates of DEPLOYMENT (infra/deployment.yaml) into infra/cdk.out; builds the Lambdas where one is missing
	@scripts/cdk --lambdas missing synth --quiet $(CDKFLAGS)

.PHONY: deploy
deploy: ## Build the Lambdas and deploy DEPLOYMENT to the account of AWS_PROFILE, one stack after the other (CDKFLAGS=...)
	@scripts/cdk --lambdas all deploy --all --concurrency 1 $(CDKFLAGS)

.PHONY: test-infra
test-infra: ## The tests of infra: what must hold of the templates, which stay in dist/templates (needs Node.js)
	rm -rf dist/templates && mkdir -p dist/templates
	cd infra && SLUICE_TEMPLATES=$(CURDIR)/dist/templates JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION=$$(node -p 'process.versions.node.split(".")[0]') go test -shuffle=on ./...

.PHONY: cfn-lint
cfn-lint: test-infra ## AWS's linter over every template that the tests made (needs Python 3)
	@scripts/cfn-lint dist/templates

.PHONY: dev
dev: ## Start the whole of it in one process, on the example plan
	go run ./cmd/sluice dev

.PHONY: check
check: lint test bench-smoke ## All that must pass before a merge; no Docker, no AWS

# Modules of their own.
NESTED = ':!bench' ':!browser' ':!examples' ':!infra'

# The packages with tests that do less in a short run, or leave out what the race detector falsifies. It makes what only computes
# seven times as slow, so under it they run short, and then once more in full without it.
FULL = $(shell git grep -lE --untracked 'testing\.Short\(\)|\b[rR]aceEnabled\b' -- '*_test.go' $(NESTED) | xargs -n 1 dirname | sort -u | sed 's|^|./|')

# How many packages are tested at once: more than there are processors, because the longest wait more than they compute.
PACKAGES = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)))

.PHONY: test
test: ## Unit tests in random order, with the race detector; what is short under it once more in full
	$(if $(RACE),,@echo 'make test: no C compiler, so the tests run without the race detector' >&2)
	go test -p $(PACKAGES) $(if $(RACE),-race -short) -shuffle=on ./...
	$(if $(RACE),go test -p $(PACKAGES) -shuffle=on $(FULL))
	cd examples && go test -shuffle=on ./...

.PHONY: soak
soak: ## The random tests with SOAK (10) times their usual seeds and scripts; the stores' too, where they can run
	SLUICE_SOAK=$(or $(SOAK),10) go test -count=1 -timeout=60m $(SOAKED)

# The packages with random tests that run longer on request.
SOAKED = $(shell git grep -l --untracked 'soak\.Times' -- '*_test.go' 'internal/limiter/limit/limittest/limittest.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|') ./internal/limiter/store/...

.PHONY: integration
integration: ## All of it deployed to LocalStack, without Docker, and tested there (TESTS='-run NAME'; docs/localstack.md)
	@localstack/integration $(TESTS)

.PHONY: demo
demo: ## So deployed, with load and a changed plan: what happened, on one screen
	@localstack/with go run ./localstack/demo

.PHONY: envoy-demo
envoy-demo: ## A real Envoy with sluice serve behind it on this machine, and what a client sees: 200s, then 429s
	@scripts/envoy-demo

.PHONY: localstack
localstack: ## So deployed, to play with, until Ctrl-C
	@localstack/with go run ./localstack/serve

.PHONY: lint
lint: tools ## go vet, staticcheck, golangci-lint, gofmt, tidy modules, no binary in the tree but pictures
	@scripts/lint

.PHONY: vulncheck
vulncheck: tools ## Known vulnerabilities in what is called; passes and says so where their database is away
	@scripts/vulncheck

.PHONY: tools
tools: ## Install the pinned linters into ./bin
	@scripts/tools

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZTIME (30s)
	@scripts/fuzz

# The packages with benchmarks: the go command would link the tests of all others, to find none.
BENCHED = $(shell git grep -l --untracked '^func Benchmark' -- '*_test.go' $(NESTED) | xargs -n 1 dirname | sort -u | sed 's|^|./|')

.PHONY: bench
bench: ## Every benchmark ten times into bench.txt, for benchstat against another commit
	go test -run='^$$' -bench=. -benchmem -count=10 ./... | tee bench.txt
	cd bench && go test -run='^$$' -bench=. -benchmem -count=10 ./... | tee -a ../bench.txt

.PHONY: bench-smoke
bench-smoke: ## Every benchmark once, so that none rots
	go test -run='^$$' -bench=. -benchtime=1x $(BENCHED)
	cd bench && go test -bench=. -benchtime=1x ./...

.PHONY: figures
figures: ## Measure against the goals, peers beside ours (ONLY=NAME for one)
	@cd bench && go run ./figures $(if $(ONLY),-only $(ONLY)) $(FIGURESFLAGS)

.PHONY: figures-table
figures-table: ## Put FROM, which has the output of make figures, into the table of docs/benchmarks.md
	@cd bench && go run ./figures -table ../docs/benchmarks.md <'$(abspath $(FROM))'

.PHONY: workload
workload: ## The published workload: processes on a real Redis; SIM=1: in virtual time, old rule and new (WORKLOADFLAGS=-h)
	@cd bench && go run ./workload $(if $(SIM),-sim) $(WORKLOADFLAGS)

.PHONY: calibrate
calibrate: ## Service times of the real parts on this machine, for sluice fleet --costs (TO=costs.json)
	@cd bench && go run ./calibrate >'$(abspath $(or $(TO),costs.json))'

.PHONY: lines
lines: ## Lines of code, product and tests, of each package
	@scripts/lines

.PHONY: golden
golden: ## Rewrite the golden files; then read the diff
	@scripts/golden

.PHONY: browser
browser: ## Open the pages in headless Chromium (REQUIRE_BROWSER=1: missing is a failure)
	cd browser && go test -count=1 ./...

.PHONY: picture
picture: ## Take the README's picture of the live page anew, in headless Chromium
	mkdir -p docs/images
	cd browser && REQUIRE_BROWSER=1 SLUICE_SCREENSHOTS=$(CURDIR)/dist/pictures go test -count=1 -run '^TestLivePageOfReadme$$' .
	install -m 644 dist/pictures/live-page.png docs/images/live-page.png

.PHONY: clean
clean: ## Remove what was built: bin, dist, bench.txt, infra's templates and CLI
	rm -rf bin dist bench.txt infra/cdk.out infra/node_modules
