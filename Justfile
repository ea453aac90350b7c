# Recipes for people who work on caldrix. `just` comes with the dev extra.

# Every recipe runs in the environment that `just` itself is installed in.
bin := parent_directory(just_executable())
python := quote(bin / "python")
caldrix := quote(bin / "caldrix")

# Where the peers that benchmarks compare with are installed; `just peers=…` names another place.
peers := justfile_directory() / ".venv-peers"

# Where the server is installed that `conformance-foreign` judges, and which version of it.
foreign := justfile_directory() / ".venv-foreign"
foreign_package := "llama-cpp-python[server]==0.3.36"

# The same for the check of other authors that `jevcompat` runs.
jevcompat := justfile_directory() / ".venv-jevcompat"
jevcompat_package := "jevcompat==0.1.1"

export PATH := bin + ":" + env("PATH")

# List the recipes
default:
    @{{ quote(just_executable()) }} --list --justfile {{ quote(justfile()) }}

# Lint, check types and run the tests on up to four cores; arguments go to pytest (-n 0: on one)
test *arguments: lint
    {{ python }} -m pytest -n auto --maxprocesses 4 {{ arguments }}

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

# Judge servers that others wrote, and ours beside them: llama-cpp-python, and llama-server on the PATH
conformance-foreign *arguments: _foreign
    {{ python }} -m tests.foreign --python {{ quote(foreign / "bin/python") }} {{ arguments }}

# Hold our decisions, or those of the server at a URL, against the rules that others wrote for them
jevcompat *arguments: _jevcompat
    {{ python }} -m tests.jevcompat --program {{ quote(jevcompat / "bin/jevcompat") }} {{ arguments }}

# Write the golden captures anew, and how sure the model is of them, to be reviewed in the diff
goldens *arguments:
    #!/usr/bin/env bash
    set -uo pipefail
    {{ caldrix }} conformance --write-goldens {{ arguments }}
    status=$?
    if [ "$status" = 2 ]; then exit 2; fi
    {{ python }} -m tests.references.golden_margins && exit "$status"

# Show the clauses added, changed and removed since a revision (where this work left origin/main)
spec-diff *arguments:
    {{ python }} -m caldrix_conformance.spec_diff {{ arguments }}

# Time a model on this machine: prefill, decode, the memory's bandwidth
bench *arguments:
    {{ caldrix }} bench {{ arguments }}

# Time it beside llama.cpp, built for this machine, and transformers, in paired rounds
bench-peers *arguments: _peers
    {{ quote(peers / "bin/python") }} -m tests.benchmarks.peers {{ arguments }}

# Time the OpenCL lanes' kernels, and whole tokens, on any OpenCL device (--device 1: the second)
bench-opencl *arguments:
    {{ python }} -m tests.benchmarks.opencl {{ arguments }}

# Compute what decoding moves and computes on GPUs, and the speed that it can't pass there
roofline *arguments:
    {{ python }} -m tests.benchmarks.roofline {{ arguments }}

# Time streamed answers beside the lane that computes them, in the same rounds
bench-http *arguments:
    {{ python }} -m tests.benchmarks.http {{ arguments }}

# Time the first token of a conversation's second turn beside the first's
bench-turns *arguments:
    {{ python }} -m tests.benchmarks.turns {{ arguments }}

# Time many questions on one state beside one question, by a decider
bench-decisions *arguments:
    {{ python }} -m tests.benchmarks.decisions {{ arguments }}

# Time decoding with guesses by n-gram lookup beside plain decoding
bench-speculation *arguments:
    {{ python }} -m tests.benchmarks.speculation {{ arguments }}

# Time the pick of a token from a large vocabulary, by sampling settings
bench-sampling *arguments:
    {{ python }} -m tests.benchmarks.sampling {{ arguments }}

# Time a tile of an image through the vision tower beside transformers, where that is installed
bench-vision *arguments: _peers
    {{ quote(peers / "bin/python") }} -m tests.benchmarks.vision {{ arguments }}

# Measure the memory that requests of eight of the largest images take at the peak
bench-image-memory *arguments:
    {{ python }} -m tests.benchmarks.image_memory {{ arguments }}

# Compile the OpenCL kernels for AMD GPUs, without one: registers, local memory, scratch
amd-code *arguments:
    {{ python }} -m tests.benchmarks.amd_code {{ arguments }}

# Ask four times what a server can take, and check each answer, refusal and what is left over
soak *arguments:
    {{ python }} -m tests.soak {{ arguments }}

# Hold our logits and llama.cpp's against float32
accuracy *arguments: _peers
    {{ quote(peers / "bin/python") }} -m tests.benchmarks.accuracy {{ arguments }}

# The peers' environment: llama.cpp is built with all that this machine's processor has
_peers:
    #!/usr/bin/env bash
    set -euo pipefail
    peers={{ quote(peers) }}
    if "$peers/bin/python" -c 'import caldrix_cpu.lane, gguf, llama_cpp, pyopencl' 2>/dev/null; then exit; fi
    echo "making $peers: it builds llama.cpp once, which takes some minutes" >&2
    {{ python }} -m venv "$peers"
    "$peers/bin/python" -m pip install --editable '.[dev,opencl]'
    # Built anew: a wheel in pip's cache may have been built otherwise, or on another machine.
    CMAKE_ARGS=-DGGML_NATIVE=ON "$peers/bin/python" -m pip install --verbose --no-cache-dir \
        --no-binary llama-cpp-python --editable '.[bench]'

# The foreign server's environment
_foreign:
    #!/usr/bin/env bash
    set -euo pipefail
    foreign={{ quote(foreign) }}
    if "$foreign/bin/python" -c 'import llama_cpp.server.app' 2>/dev/null &&
        grep -qxF {{ quote(foreign_package) }} "$foreign/installed" 2>/dev/null; then exit; fi
    echo "making $foreign: it builds llama.cpp once, which takes some minutes" >&2
    {{ python }} -m venv "$foreign"
    "$foreign/bin/python" -m pip install {{ quote(foreign_package) }}
    echo {{ quote(foreign_package) }} >"$foreign/installed"

# The environment of jevcompat
_jevcompat:
    #!/usr/bin/env bash
    set -euo pipefail
    jevcompat={{ quote(jevcompat) }}
    if grep -qxF {{ quote(jevcompat_package) }} "$jevcompat/installed" 2>/dev/null; then exit; fi
    {{ python }} -m venv "$jevcompat"
    "$jevcompat/bin/python" -m pip install --quiet {{ quote(jevcompat_package) }}
    echo {{ quote(jevcompat_package) }} >"$jevcompat/installed"
