# Run make, or make help, for what there is.

GO    ?= go
TOOLS := $(GO) tool -modfile=tools/go.mod
TAGS  := sqlite pg memory

# go build -tags for each build: the default one, SQLite, has none.
tag = $(filter-out sqlite,$(1))

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start the server on SQLite; ARGS="..." adds arguments
	$(GO) run . serve $(ARGS)

.PHONY: build
build: ## Build bin/tandem (SQLite), bin/tandem-pg and bin/tandem-memory
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/tandem .
	CGO_ENABLED=0 $(GO) build -trimpath -tags=pg -o bin/tandem-pg .
	CGO_ENABLED=0 $(GO) build -trimpath -tags=memory -o bin/tandem-memory .

.PHONY: generate
generate: ## Write the generated files anew
	$(GO) generate ./...

.PHONY: test
test: ## Run every check as CI does, setting up what it needs; ONLY=vet,test narrows it
	$(GO) run ./internal/cmd/testall $(if $(ONLY),-only $(ONLY))

.PHONY: test-quick
test-quick: ## Run the tests of the default build without the race detector
	$(GO) test ./...

.PHONY: lint
lint: ## Run the linters, once per build
	$(foreach t,$(TAGS),$(TOOLS) golangci-lint run --build-tags=$(call tag,$(t)) ./... &&) true

.PHONY: fmt
fmt: ## Format every file
	$(TOOLS) gofumpt -w .

.PHONY: bench
bench: ## Measure the drivers beside their floors; FILTER=claim SECONDS=2 JSON=1
	@cd bench && FILTER='$(FILTER)' SECONDS='$(SECONDS)' JSON='$(JSON)' $(GO) run .

.PHONY: rig
rig: ## Break a deployment in every way there is a promise for; ARGS="-list", "-short", "-scenario kill", "-break"
	@cd rig && $(GO) run . $(ARGS)

.PHONY: clean
clean: ## Remove what build leaves
	rm -rf bin
