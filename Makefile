# The targets read themselves: make help.
GO        ?= go
FUZZTIME  ?= 5s
BENCHTIME ?= 1x

.DEFAULT_GOAL := help
.PHONY: help build test race soak vet fmt check bench fuzz mutants tidy

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the three binaries, into bin/
	$(GO) build -o bin/ ./cmd/...

test: ## every test; integration runs the real binaries
	$(GO) test -timeout 10m ./...

race: ## every test under the race detector (needs a C compiler)
	$(GO) test -race -timeout 15m ./...

soak: ## the same tests at full size, for as long as that takes
	WEFT_SOAK=1 $(GO) test -count=1 -timeout 120m ./...

vet: ## go vet
	$(GO) vet ./...

fmt: ## format the code
	gofmt -w .

check: ## what to run before a commit: format, vet, test
	@test -z "$$(gofmt -l .)" || { echo 'not formatted (make fmt):'; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) test -timeout 10m ./...

bench: ## every benchmark once, or BENCHTIME=2s for figures
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

fuzz: ## every fuzz target for FUZZTIME
	@set -e; grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u | while read -r dir; do \
		grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | cut -d' ' -f2 | while read -r target; do \
			echo "$$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null || exit 1; \
		done || exit 1; \
	done

mutants: ## break the duplex state machines in a dozen places; the simulator must notice each
	WEFT_MUTANTS=1 $(GO) test -count=1 -timeout 15m -run '^TestMutants$$' -v ./internal/duplex

tidy: ## go.mod and go.sum
	$(GO) mod tidy
