# Every target makes the environment it needs (.venv, exact versions from requirements/) by itself.
#
#     make test PYTHON=python3.12          another Python (3.11 or later)
#     make test ARGS="-n 0 tests/core"     more arguments for pytest (also for slow and bench)

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Twice quiet: errors only.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
SHELL := /bin/bash
# Where it is set, each process that tests start compiles all of blockscale's Python again: a second.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-builtin-rules # src/isa is a folder: not to be made from isa.cpp
# What the native library is made of; a folder is newer when a file in it comes or goes.
NATIVE := pyproject.toml CMakeLists.txt $(shell find blockscale/kernels/cpu/src)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help attack races demo test slow gpu webgpu clients serve-test check fix bench accuracy docs docs-site native wheel sanitize lock clean

# Scripts in .venv name its full path, so a checkout that was copied or moved starts a new one.
ifneq ($(wildcard .venv/.made),)
ifneq ($(shell cat .venv/.made),$(realpath .))
$(shell rm -rf .venv)
endif
endif

# The library lies in the tree. Where it is not, what was missing to build it may be there now.
ifeq ($(wildcard blockscale/kernels/cpu/_native.*),)
$(shell rm -f .venv/.native .venv/.kernels)
endif

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

demo: .venv/.native ## the tour: a real model, quantized and measured
	@HF_HUB_OFFLINE=1 $(BIN)/blockscale demo $(ARGS)

test: .venv/.test .venv/.kernels .venv/.triton .venv/.vulkan .venv/.models ## the fast tests (minutes)
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

slow: .venv/.test .venv/.kernels .venv/.triton .venv/.vulkan .venv/.models ## the exhaustive tests
	@$(BIN)/python -m pytest -m slow -n 2 $(ARGS) || [ $$? -eq 5 ] # 5: there are none

# Under 8 minutes on an H200 with ARGS="-n 12": kernels are compiled once each.
gpu: ## tests and benchmark on CUDA, in the environment at hand (torch with CUDA, pytest)
	@$(PYTHON) -m pytest -m gpu tests/gpu -p no:benchmark $(ARGS)
	@$(PYTHON) -m benchmarks.run --device cuda --seconds 270

# The adapter is the best that is here; BLOCKSCALE_WEBGPU_ADAPTER names another.
webgpu: ## the WebGPU tests, slow ones too, and benchmark, in the environment at hand (wgpu, torch, pytest)
	@$(PYTHON) -m pytest -m "slow or not slow" tests/kernels/webgpu -p no:benchmark $(ARGS)
	@$(PYTHON) -m benchmarks.webgpu --write
	@$(PYTHON) -m benchmarks.webgpu_textures --write

# The programs get environments of their own below .venv/clients, or where BLOCKSCALE_CLIENTS says.
clients: .venv/.test .venv/.native .venv/.clients ## our files in vLLM, llama.cpp, MLX and OpenVINO (gigabytes), into docs/clients.md
	@$(BIN)/python -m pytest -n 0 -m clients tests/clients --record docs/clients.jsonl $(ARGS); failed=$$?; \
	$(BIN)/python -m docs.generate; exit $$failed

serve-test: .venv/.test .venv/.native .venv/.clients ## our directories served by vLLM with our plug-in (docs/serving.md)
	@$(BIN)/python -m pytest -n 0 -m clients tests/clients/test_vllm_plugin.py --record docs/clients.jsonl $(ARGS); failed=$$?; \
	$(BIN)/python -m docs.generate; exit $$failed

check: .venv/.dev ## lint, format and types
	@failed=0; \
	$(BIN)/ruff check --output-format concise || failed=1; \
	$(BIN)/ruff format --check --output-format concise || { echo "'make fix' formats them"; failed=1; }; \
	$(BIN)/mypy || failed=1; \
	exit $$failed

fix: .venv/.dev ## what the linter and the formatter can repair, and headers
	@$(BIN)/ruff check --fix; $(BIN)/ruff format; $(BIN)/python -m tests.support.headers

bench: .venv/.bench .venv/.native ## measure speed beside torchao and onnxruntime, into benchmarks/results/
	@if [ -f benchmarks/run.py ]; then $(BIN)/python -m benchmarks.run $(ARGS); \
	else $(BIN)/python -m benchmarks.import_time; fi

# MODELS: a folder that benchmarks.language_model.train wrote, which needs a GPU for minutes.
accuracy: .venv/.bench .venv/.native ## a language model in each format beside others, into docs/accuracy.md: MODELS=FOLDER
	@test -d "$(MODELS)" || { echo "make accuracy MODELS=FOLDER: benchmarks/language_model/train.py makes one"; exit 1; }
	@$(BIN)/python -m benchmarks.language_model.evaluate --models "$(MODELS)" --output build/accuracy.jsonl $(ARGS)
	@$(BIN)/python -m benchmarks.language_model.gather build/accuracy.jsonl
	@$(BIN)/python -m docs.generate

docs: .venv/.native ## write the generated pages again
	@$(BIN)/python -m docs.generate

docs-site: .venv/.site .venv/.test .venv/.native ## these pages and every public function as a site, in build/site/
	@$(BIN)/python -W ignore -m sphinx -q -W --keep-going -b html -c docs/site . build/site
	@echo "build/site/index.html"

native: .venv/.kernels ## compile the C++ kernels for every instruction set (other targets compile what they need)

wheel: .venv/.wheel ## a wheel that needs no compiler, and the sdist, into dist/ (PYTHON=python3.12: for all later ones)
	@bash requirements/wheel.sh $(BIN)/python dist
	@ls dist

# Python itself is not instrumented, so the sanitizer's library must come first; Python leaks on purpose.
SANITIZE := $(CURDIR)/build/sanitize
sanitize: .venv/.test ## the native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(BIN)/cmake -S . -B $(SANITIZE) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=NOTICE \
		-DCMAKE_CXX_COMPILER=$(CXX) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		-DCMAKE_BUILD_TYPE=Debug -DBLOCKSCALE_SANITIZE=ON
	@$(BIN)/cmake --build $(SANITIZE)
	@export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1 \
		PYTHONMALLOC=malloc BLOCKSCALE_NATIVE=$$(echo $(SANITIZE)/_native.*); \
	$(BIN)/python -m pytest -s tests/kernels/test_hardware.py $(wildcard tests/kernels/cpu) $(ARGS)

# A minute of it is in `make slow`. ARGS="--minutes 5 --only kills,cells", "--fresh", "--seed 1".
attack: .venv/.test .venv/.native ## an hour of kills, full disks, hostile files, and kernels against the reference
	@$(BIN)/python -W ignore -m attack --figures docs/reliability.json $(ARGS); failed=$$?; \
	$(BIN)/python -m docs.generate; exit $$failed

races: .venv/.test ## the native kernels under ThreadSanitizer (clang and archer)
	@PYTHON=$(BIN)/python bash attack/races.sh

lock: ## resolve requirements/*.txt again, torch kept
	@bash requirements/lock.sh $$(grep -h '^torch==' requirements/demo.txt)

clean: ## remove the environment, what was built and the caches
	@rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	@rm -f blockscale/kernels/cpu/_native.* blockscale/kernels/cpu/_unbuilt.txt
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@command -v $(PYTHON) > /dev/null || { \
		echo "blockscale needs Python 3.11 or later, and '$(PYTHON)' is not there: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "blockscale needs Python 3.11 or later; this is $$($(PYTHON) --version): make PYTHON=python3.11"; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo "no venv in this Python (Debian: apt install python3-venv)"; exit 1; }
	@$(PIP) -r requirements/pip.txt || echo "pip stays as Python brought it: what follows takes longer"
	@echo '$(realpath .)' > $@

# The demonstration imports a tenth of what pip would compile, in a minute of processor time. Tests import far more,
# and take a warning of the compiler, such as of torchao's docstrings, for an error.
.venv/.demo: requirements/demo.txt | .venv/.made
	@echo "installing requirements/demo.txt into .venv (once; minutes)"
	@$(PIP) --no-compile -r requirements/demo.txt
	@touch $@

# What builds blockscale is among the requirements, so installing blockscale itself fetches nothing.
# .native is compiled for this processor alone, .kernels for every instruction set, which tests compare.
define BUILD
	@echo "installing blockscale into .venv; its C++ is compiled (minutes; later only what changed)"
	@$(PIP) --no-deps --no-build-isolation -C cmake.define.BLOCKSCALE_ISA=$(1) --editable .
	@if [ -f blockscale/kernels/cpu/_unbuilt.txt ]; then \
		echo "without native kernels: $$(cat blockscale/kernels/cpu/_unbuilt.txt)"; fi
endef

.venv/.native: .venv/.demo $(NATIVE)
	$(call BUILD,$(if $(wildcard .venv/.kernels),all,native))
	@touch $@ $(wildcard .venv/.kernels)

.venv/.kernels: .venv/.demo $(NATIVE)
	$(call BUILD,all)
	@touch .venv/.native $@

.venv/.test: requirements/test.txt .venv/.demo
	@echo "installing requirements/test.txt into .venv (once)"
	@$(PIP) -r requirements/test.txt
	@$(BIN)/python -W ignore -m compileall -qq -j 2 $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || true
	@touch $@

# A CUDA build of torch brings its own Triton along, which must stay.
.venv/.triton: requirements/triton.txt .venv/.test
	@$(BIN)/python -c 'import triton' 2> /dev/null || { \
		echo "installing requirements/triton.txt into .venv (once): the CUDA kernels run in its interpreter"; \
		$(PIP) -r requirements/triton.txt; } || \
		echo "no Triton for this platform: the tests of the CUDA kernels are skipped"
	@touch $@

# Beside the environment, not in it: torchvision's compiled part loads beside no CPU build of torch,
# and transformers imports torchvision wherever it finds one (tests/models/outside.py).
.venv/.models: requirements/models.txt .venv/.test
	@echo "installing requirements/models.txt into .venv/models (once): architectures that tests quantize"
	@rm -rf .venv/models
	@if $(PIP) --no-deps --target .venv/models -r requirements/models.txt; then touch $@; else \
		echo "*** torchvision AND timm COULD NOT BE INSTALLED: the tests of their models are skipped ***"; fi

# WebGPU's kernels are tested on any Vulkan driver; where there is none, on Mesa's, in software.
.venv/.vulkan: requirements/vulkan.sh .venv/.test
	@PYTHON=$(BIN)/python bash requirements/vulkan.sh
	@touch $@

.venv/.clients: requirements/clients.sh .venv/.made
	@PYTHON=$(PYTHON) bash requirements/clients.sh "$${BLOCKSCALE_CLIENTS:-.venv/clients}"
	@touch $@

.venv/.bench: requirements/bench.txt .venv/.test
	@echo "installing requirements/bench.txt into .venv (once)"
	@$(PIP) -r requirements/bench.txt
	@touch $@

.venv/.site: requirements/site.txt .venv/.demo
	@echo "installing requirements/site.txt into .venv (once)"
	@$(PIP) -r requirements/site.txt
	@touch $@

.venv/.wheel: requirements/wheel.txt .venv/.demo
	@echo "installing requirements/wheel.txt into .venv (once)"
	@$(PIP) -r requirements/wheel.txt
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.test
	@echo "installing requirements/dev.txt into .venv (once)"
	@$(PIP) -r requirements/dev.txt
	@touch $@
