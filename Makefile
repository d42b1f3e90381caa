# lanetrace: build, run, test. `make help` lists the targets.

GO      ?= go
BIN     := bin
FUZZ    ?= 2000x
VERSION := $(shell sed -n 's/^const Version = "\(.*\)"/\1/p' doc.go)
# -trimpath: call sites and recordings must not hold the builder's paths.
BUILD   := $(GO) build -trimpath
# For what hangs: a package's tests take two minutes, and ten times that on a busy machine.
WAIT    := -timeout 30m
# Runs tests and lists at the end which were skipped, and why.
TESTSUM := $(BIN)/gotestsum --format pkgname --format-icons text --format-hide-empty-pkg --raw-command -- $(GO) test -json

# go-nvml binds all of NVML: what is deprecated in it would be a hundred lines of warnings.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := build

.PHONY: build
build: ## the lanetrace binary and the example engine, into bin/
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./cmd/lanetrace ./examples/decode

.PHONY: run
run: ## play the recording of an H200 and serve /metrics until interrupted
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/lanetrace ./cmd/lanetrace
	@exec ./$(BIN)/lanetrace demo

.PHONY: agent
agent: ## the library that attaches to CUDA programs, into bin/; needs gcc
	@mkdir -p $(BIN)
	$(GO) run ./backend/agent/mkagent $(BIN)/liblanetrace.so

.PHONY: gotestsum
gotestsum: # pinned in tools/gotestsum
	@mkdir -p $(BIN)
	@cd tools/gotestsum && $(GO) build -o ../../$(BIN)/gotestsum gotest.tools/gotestsum

.PHONY: test
test: gotestsum ## all tests that need no server and no GPU
	@# Everything is compiled first: tests that run beside a compiler wait too long for what they start.
	CGO_ENABLED=0 $(BUILD) ./cmd/lanetrace ./examples/decode
	$(GO) list -test -deps -export -f '' ./... >/dev/null
	$(TESTSUM) $(WAIT) ./...

.PHONY: servers
servers: ## Jaeger, Prometheus and an OpenTelemetry Collector into bin/, where they are not yet: see tools/servers
	@GO="$(GO)" ./tools/servers get

.PHONY: test-servers
test-servers: servers gotestsum ## the pipeline against real servers
	GO="$(GO)" $(TESTSUM) -count=1 -timeout 40m -tags servers ./internal/servers/...
	cd tools/browser && $(GO) vet . && "$(CURDIR)"/$(TESTSUM) -count=1 -timeout 40m .
	@if command -v npm >/dev/null; then $(MAKE) test-panels; else echo "NOT TESTED: the boards in Grafana's own components (no npm)"; fi

.PHONY: test-panels
test-panels: servers panels ## the boards drawn with Grafana's own components; needs npm and Chromium
	GO="$(GO)" $(GO) test -count=1 -timeout 40m -tags servers,panels -run TestPanelsDrawn ./internal/servers/

.PHONY: panels
panels: # those components, as tools/panels pins them
	@[ tools/panels/node_modules/.package-lock.json -nt tools/panels/package-lock.json ] || (cd tools/panels && npm ci --no-audit --no-fund --loglevel=error --fetch-retries=5)

.PHONY: images
images: servers panels ## the pictures in docs/images; needs npm and Chromium
	cd tools/browser && LANETRACE_IMAGES="$(CURDIR)/docs/images" $(GO) test -count=1 -timeout 40m -run TestNumbers .
	GO="$(GO)" LANETRACE_IMAGES="$(CURDIR)/docs/images" $(GO) test -count=1 -timeout 40m -tags servers,panels -run TestPanelsDrawn ./internal/servers/

.PHONY: check
check: generated vet lint agent race fuzz soak-short ## generated files current, vet, lint, the agent built, race detector, 2,000 inputs of each fuzz target, a short soak

.PHONY: vet
vet:
	$(GO) vet ./...
	$(GO) vet -tags servers,panels ./internal/servers/...
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) vet ./...

.PHONY: lint
lint: ## golangci-lint, pinned in tools/lint
	cd tools/lint && $(GO) build -o ../../$(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	./$(BIN)/golangci-lint run ./...

.PHONY: race
race: gotestsum
	$(TESTSUM) -race $(WAIT) ./...

.PHONY: fuzz
fuzz: ## FUZZ=2000x inputs, or FUZZ=1m, of each fuzz target
	@GO="$(GO)" ./internal/ci/fuzz $(FUZZ)

.PHONY: generated
generated: ## fail when a generated file is not what its generator makes
	@GO="$(GO)" ./internal/ci/generated

# Every run draws another seed and prints it; SOAK="-seed N" repeats one.
.PHONY: soak
soak: ## two engines and a sidecar that are killed and stopped, a full disk, an outage: 25 million spans, ten minutes
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./cmd/lanetrace ./internal/soak
	./$(BIN)/soak -sidecar $(BIN)/lanetrace $(SOAK)

.PHONY: soak-short
soak-short: ## the same in less than a minute
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./cmd/lanetrace ./internal/soak
	./$(BIN)/soak -sidecar $(BIN)/lanetrace -spans 500000 -rounds 4 -window 1s -quiet 1s -longest 2s -limit 10m $(SOAK)

.PHONY: bench
bench: ## benchmarks, ns/op and allocs/op; ratios are taken within one run
	$(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: gpu-test
gpu-test: ## the conformance suite on this machine's GPU
	LANETRACE_TEST_GPU=1 $(GO) test -count=1 -v ./backend/cuda

# OVERHEAD="-python python3" measures an attached PyTorch model as well.
.PHONY: gpu-overhead
gpu-overhead: $(if $(findstring -python,$(OVERHEAD)),agent) ## what levels, and CUPTI, cost a step on this machine's GPU: three minutes; OVERHEAD="-help" lists its flags
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./examples/decode ./internal/overhead
	./$(BIN)/overhead -raw $(BIN)/overhead.jsonl $(OVERHEAD)

.PHONY: gpu-accuracy
gpu-accuracy: ## published times against CUPTI's, and placement against the host, on this machine's GPU: twelve minutes; ACCURACY="-help" lists its flags
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./internal/accuracy
	./$(BIN)/accuracy -json $(BIN)/accuracy.json $(ACCURACY)

.PHONY: clean
clean:
	rm -rf $(BIN)

.PHONY: help
help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14
