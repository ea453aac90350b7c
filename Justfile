# Recipes for people who work on caldrix. `just` comes with the dev extra.

# Every recipe runs in the environment that `just` itself is installed in.
bin := parent_directory(just_executable())
python := quote(bin / "python")
caldrix := quote(bin / "caldrix")

export PATH := bin + ":" + env("PATH")

# List the recipes
default:
    @{{ quote(just_executable()) }} --list --justfile {{ quote(justfile()) }}

# Lint, check types and run the tests; arguments go to pytest
test *arguments: lint
    {{ python }} -m pytest {{ arguments }}

# Check style and types
lint:
    {{ python }} -m ruff format --check .
    {{ python }} -m ruff check .
    {{ python }} -m mypy

# Serve a model (smollm2 unless named)
serve *arguments:
    {{ caldrix }} serve {{ arguments }}

# Check which documented behaviours a running server keeps; without a URL, our own server
conformance *arguments:
    {{ caldrix }} conformance {{ arguments }}

# Write the golden captures anew, to be reviewed in the diff
goldens *arguments:
    {{ caldrix }} conformance --write-goldens {{ arguments }}

# Show the clauses added, changed and removed since a revision
spec-diff *arguments:
    {{ python }} -m caldrix_conformance.spec_diff {{ arguments }}

# Time this installation: prefill, decode
bench *arguments:
    {{ python }} -m tests.benchmarks.bench {{ arguments }}

# Time it beside llama.cpp on the same weights, in paired, interleaved rounds (wants the bench extra)
bench-peers *arguments:
    {{ python }} -m tests.benchmarks.peers {{ arguments }}
