# Everything runs in .venv, which tools/setup.sh makes and keeps up to date; nothing else is needed.
PY := .venv/bin/python
# worksteal keeps the tests of a file together, so that what a file sets up is set up once
PYTEST_FLAGS ?= -n 3 --dist worksteal
# tests start a thousand processes; without compiled modules each compiles the package anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long test-arm64 release-check drivers conformance onnx-cases webnn-cases networks generate lint bench clean
.DEFAULT_GOAL := help

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: ## set up, then filter a photograph and classify digits on every device found here
	@sh tools/setup.sh demo
	@$(PY) examples/demo.py

test: ## set up, then run all tests
	@sh tools/setup.sh test
	@$(PY) -m pytest $(PYTEST_FLAGS)

test-long: ## set up, then run the long tests (hours), or with SAMPLE=8 always the same few (about 5 minutes)
	@sh tools/setup.sh test
	@$(PY) -m pytest $(PYTEST_FLAGS) -m 'long or in_turn' $(if $(SAMPLE),--sample $(SAMPLE))

test-arm64: ## install the wheel on an emulated arm64 Linux and run it on every level (hours), or with SHARD=1/100 a part
	@sh tools/setup.sh arm64
	@$(PY) tools/arm64.py $(if $(SHARD),--shard $(SHARD))

release-check: drivers ## run every campaign (hours), write their results to the docs; goes on where it was interrupted
	@sh tools/setup.sh arm64
	@$(PY) tools/release_check.py

drivers: ## set up for tests and fetch the test drivers; fails if one is missing
	@sh tools/setup.sh test
	@$(PY) tools/drivers.py --check

conformance: drivers ## run the conformance cases on every driver configuration, write the table of docs/
	@$(PY) tools/conformance_table.py --run

onnx-cases: drivers ## run ONNX's core cases on one driver of each level, write the table of docs/
	@$(PY) tools/onnx_cases.py --run

webnn-cases: drivers ## run WebNN's conformance cases on one driver of each level, write the table of docs/
	@$(PY) tools/webnn_cases.py --run

networks: drivers ## run whole networks on one driver of each level, write the table of docs/
	@$(PY) tools/networks.py --run

generate: ## set up, then write what follows from the descriptions of operators
	@sh tools/setup.sh lint
	@$(PY) tools/generate.py
	@$(PY) tools/cli_options.py

lint: ## set up, then check style and types; print the lines of code by room
	@sh tools/setup.sh lint
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) tools/lines.py

bench: ## set up, then run the benchmarks
	@sh tools/setup.sh test
	@found=; for file in benchmarks/*.py; do \
	  [ -e "$$file" ] || continue; found=1; echo "$$file"; $(PY) "$$file" || exit 1; \
	done; [ -n "$$found" ] || echo "no benchmarks yet"

clean: ## remove .venv and everything built or cached in the checkout
	rm -rf .venv .drivers .arm64 dist build out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
