# Every target is sufficient alone, also on a fresh clone: it creates .venv, installs what it needs, and builds.
#
# Variables, as in make test MAX_JOBS=4:
#
# PYTHON     the interpreter .venv is made with (python3)
# CUDA       CUDA=1 installs the package index's PyTorch, on PyPI with CUDA, and not PyTorch's own build for the CPU
# PIP_FLAGS  added to every pip install: PIP_FLAGS="--no-index --find-links DIR" needs no network, with wheels in DIR
# MAX_JOBS   compilers, and test modules, that run at a time (as many as cores, and 1.5 GiB of free memory for each)
# V          V=1 prints the commands of the compiler
# CXX        the C++ compiler (c++, or g++ if that is another's): GCC 11 or newer
# TORCH      of make test, make wheels and make record: another version of PyTorch, as in TORCH=2.15.0, with its Triton,
#            in a copy of the tree that is removed afterwards. Takes 8 GB while it runs.
# URL        of make wheels and make docs-site: where the project is; what indexes show links there
# SETTINGS   of make test-matrix: some of those in tools/test_matrix.py, as in SETTINGS="avx2 order"
# FUZZ_SEED, FUZZ_COUNT  of make fuzz and make fuzz-runtime: the first program (1000000), and how many (10000)
# FUZZ_JOBS  of all three: how many processes run them, of make fuzz pairs of processes (1)
# STRESS_SEED, STRESS_COUNT  of make stress: the first interleaving (0), and how many (1000)
# FUZZ_COMPILE_COUNT  programs of make fuzz-compile, from FUZZ_SEED on (1000)

PYTHON ?= python3
PIP_FLAGS ?=
ifndef MAX_JOBS
MAX_JOBS := $(or $(shell $(PYTHON) tools/machine.py --jobs 2>/dev/null),1)
endif
export MAX_JOBS

# As if the processor had AVX2 and nothing newer.
AVX2 = $(shell $(PYTHON) -m tools.test_matrix --environment avx2)

BENCHMARKS := start device eager runtime triton_kernels graphs compile kernels distributed sanitizing

FUZZ_SEED ?= 1000000
FUZZ_COUNT ?= 10000
FUZZ_JOBS ?= 1
FUZZ_COMPILE_COUNT ?= 1000

VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --disable-pip-version-check
PIP_INSTALL := $(BIN)/python $(PIP) $(PIP_FLAGS)

# $(call install_torch,PYTHON,torch==VERSION): the build for the CPU, unless CUDA=1. Where its index has none, or cannot
# be reached, the usual index serves. It is asked for nothing else: pip waits for an index that does not answer once for
# each package.
CPU_INDEX := https://download.pytorch.org/whl/cpu
install_torch = $(if $(filter 1,$(CUDA)),,\
	@$(1) $(PIP) --no-deps --retries 0 --timeout 15 --index-url $(CPU_INDEX) $(PIP_FLAGS) '$(2)' \
	  || echo "$(CPU_INDEX) offers no $(2) here, or cannot be reached: the usual package index is asked.")

BUILT := $(VENV)/built
BUILD_INPUTS := setup.py pyproject.toml torch_mtia/_versions.py \
	$(shell find csrc yaml tools -type f -not -name '*.pyc')
CPP_FILES := $(shell find csrc tests/cpp tests/foreign_backend -name '*.h' -o -name '*.cpp')
PYTHON_FILES := setup.py torch_mtia mtia triton_mtia tools tests benchmarks examples

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help build-aarch64 check demo demo-text test test-aarch64 test-matrix test-clients test-privateuse1 test-sanitized test-wide test-wheels conformance build browser bench bench-avx2 fuzz fuzz-compile fuzz-runtime docs docs-site dtypes lint format record sanitize stress traces wheels wheels-aarch64 clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 25
	@echo
	@sed -n '/^# Variables/,/^$$/s/^# \{0,1\}//p' $(MAKEFILE_LIST)

demo: $(BUILT) $(VENV)/demo  ## train a network on mtia and on the CPU, and compare
	$(BIN)/python -m torch_mtia
	$(BIN)/python examples/train_digits.py --compare
	@$(BIN)/python -m tools.examples $(BIN)/python

demo-text: $(BUILT) $(VENV)/demo  ## train a small GPT on source text on mtia and on the CPU, and compare
	$(BIN)/python examples/train_text.py --compare

ifdef TORCH
TRITON := $(shell $(PYTHON) -c 'import runpy; print(runpy.run_path("torch_mtia/_versions.py")["triton_requirement"]("$(TORCH)"))')
COPY := build/torch-$(TORCH)

test wheels test-wheels:
	@test -n "$(TRITON)" || { echo "TORCH=$(TORCH) is no version that torch_mtia/_versions.py lists"; exit 2; }
	rm -rf $(COPY)
	mkdir -p $(COPY)
	git ls-files --cached --others --exclude-standard | tar -c -T - | tar -x -C $(COPY)
	sed -i 's/^torch==.*/torch==$(TORCH)/; s/^triton==.*/$(TRITON)/' $(COPY)/requirements/*.txt
	status=0; env -u TORCH -u MAKEFLAGS -u MAKEOVERRIDES $(MAKE) -C $(COPY) $@ PYTHON=$(PYTHON) || status=1; \
	if [ -d $(COPY)/dist ]; then mkdir -p dist && mv $(COPY)/dist/* dist || status=1; fi; \
	rm -rf $(COPY); exit $$status

# In an environment that has nothing else: what the package replaces is recorded as it comes.
record: $(BUILT) $(VENV)/test  ## record in tests/recorded what the package uses of PyTorch TORCH
	@test -n "$(TRITON)" || { echo "TORCH=$(TORCH) is no version that torch_mtia/_versions.py lists"; exit 2; }
	rm -rf $(COPY)
	$(PYTHON) -m venv $(COPY)
	sed 's/^torch==.*/torch==$(TORCH)/' requirements/build.txt > $(COPY)/requirements.txt
	grep '^expecttest' requirements/test.txt >> $(COPY)/requirements.txt
	$(call install_torch,$(COPY)/bin/python,torch==$(TORCH))
	$(COPY)/bin/python $(PIP) $(PIP_FLAGS) -r $(COPY)/requirements.txt '$(TRITON)'
	$(BIN)/python -m tools.versions names > $(COPY)/names
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(COPY)/bin/python -m tools.versions record < $(COPY)/names
	rm -rf $(COPY)
else
record:
	@echo "make record TORCH=2.15.0: which version?"; exit 2

test: $(BUILT) $(VENV)/test  ## run the C++ unit tests and the Python tests
	$(MAKE) -j$(MAX_JOBS) -C tests/cpp run
	$(BIN)/python -m pytest -n $(MAX_JOBS) --dist loadfile --no-loadscope-reorder tests

# A few quick modules of each area.
CHECKED := docs machine build_log kernel_abi device tensors pointwise fallback layers optimizers amp \
	streams graphs graph_training allocator_settings \
	triton_control_flow triton_masks triton_memory triton_atomics triton_loops \
	compile compile_autocast distributed sanitizer_in_place sanitizer_kernels conformance_ledgers

check: lint $(BUILT) $(VENV)/test  ## make lint, the C++ unit tests, and a few quick Python tests of each area
	$(MAKE) -j$(MAX_JOBS) -C tests/cpp run
	$(BIN)/python -m pytest -q -n $(MAX_JOBS) --dist loadfile $(CHECKED:%=tests/test_%.py)

test-matrix: $(BUILT) $(VENV)/test  ## run the Python tests under each of SETTINGS (all): processors, threads, users, memory, order, load
	$(BIN)/python -m tools.test_matrix $(SETTINGS) --jobs $(MAX_JOBS)

# PyTorch's libraries stay outside of the wheel: those of the environment are loaded.
wheels: $(BUILT) $(VENV)/wheels  ## build the sources, a wheel for this PyTorch and Python, the suite and the clients, in dist/
	rm -rf build/lib.* build/bdist.* build/wheels
	$(BIN)/python -m build --no-isolation --sdist --outdir dist
	TORCH_MTIA_WHEEL=1 TORCH_MTIA_URL=$(URL) $(BIN)/python -m build --no-isolation --wheel --outdir build/wheels
	PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist \
	  build/wheels/*.whl
	for name in conformance clients; do \
	  $(BIN)/python -m tools.distributions $$name build/distributions/$$name && \
	  $(BIN)/python -m build --no-isolation --outdir dist build/distributions/$$name || exit 1; done

test-wheels: wheels $(VENV)/test  ## install what make wheels has made into empty environments, and use it there
	$(BIN)/python -m pytest -m wide tests/test_wheels.py
endif

# aarch64, built and tested on x86-64: tools/aarch64.py has what that needs of the machine. Nothing of .venv is used.
AARCH64 := build/aarch64
ON_AARCH64 := $(PYTHON) -m tools.aarch64 run $(AARCH64)/root
SMOKE_TESTS := device streams autograd pointwise products compile compile_models \
	triton_control_flow triton_atomics triton_masks
# One process at a time: in qemu each takes 5 GB once it has a device.
# There is no transformers in the root, and ten processes that begin at once take longer under qemu than a hang may.
NOT_SMOKE := bert or right_after_its_first_backward

$(AARCH64)/root/usr: tools/aarch64.py requirements/build.txt requirements/demo.txt requirements/test.txt
	rm -rf $(@D)
	$(PYTHON) -m tools.aarch64 root $(@D)
	@touch $@

# A copy of the tree: the libraries have the names of this machine's.
build-aarch64: $(AARCH64)/root/usr
	mkdir -p $(AARCH64)/tree
	find $(AARCH64)/tree -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
	git ls-files --cached --others --exclude-standard | tar -c -T - | tar -x -C $(AARCH64)/tree
	$(ON_AARCH64) sh -c 'cd $(AARCH64)/tree && python3.11 setup.py -q egg_info build_ext --inplace'

test-aarch64: build-aarch64  ## build for aarch64, and run the C++ unit tests and some Python tests in qemu
	$(ON_AARCH64) $(MAKE) -j$(MAX_JOBS) -C $(AARCH64)/tree/tests/cpp KIND=aarch64 run
	$(ON_AARCH64) sh -c 'cd $(AARCH64)/tree && PYTHONPATH=$$PWD TORCHINDUCTOR_COMPILE_THREADS=1 python3.11 -m pytest \
	  -k "not ($(NOT_SMOKE))" $(SMOKE_TESTS:%=tests/test_%.py)'

wheels-aarch64: build-aarch64 $(VENV)/wheels  ## build a wheel for aarch64 and Python 3.11, in dist/
	$(ON_AARCH64) sh -c 'cd $(AARCH64)/tree && rm -rf wheels && TORCH_MTIA_WHEEL=1 TORCH_MTIA_URL=$(URL) \
	  python3.11 setup.py -q bdist_wheel -d wheels'
	PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist \
	  $(AARCH64)/tree/wheels/*.whl

# The tests speak of mtia; the copy of them, of the other name.
test-privateuse1: $(BUILT) $(VENV)/test  ## run the Python tests with the device under the name acme
	rm -rf tests_acme
	cp -r tests tests_acme
	perl -pi -e 's/\bfrom tests\.every_kind\b/from tests_acme.every_kind/; s/\bmtia\b(?!\.host_runtime|\/)/acme/g; s/\bis_mtia\b/is_acme/g; s/\b(Autograd|Autocast)?MTIA\b/$$1PrivateUse1/g' tests_acme/*.py tests_acme/sanitizer/*.py
	TORCH_MTIA_PRIVATEUSE1=acme $(BIN)/python -m pytest -n $(MAX_JOBS) --dist loadfile tests_acme
	rm -rf tests_acme

test-sanitized: $(BUILT) $(VENV)/test  ## run the Python tests and the demos under torch_mtia.sanitize
	$(BIN)/python -m pytest -n $(MAX_JOBS) --dist loadfile -p torch_mtia.sanitizer.pytest_plugin \
	  --sanitize-device streams,memory --ignore-glob 'tests/test_sanitizer*.py' tests
	for demo in digits text; do \
	  $(BIN)/python -m torch_mtia.sanitize --checks streams,memory examples/train_$$demo.py || exit 1; done

test-wide: $(BUILT) $(VENV)/test  ## run the sweeps that are too long for make test
	$(BIN)/python -m pytest -n $(MAX_JOBS) -m wide tests

# Their environment is that of make test with more in it: what .venv has is seen there.
CLIENTS := $(VENV)/clients

test-clients: $(BUILT) $(VENV)/test $(CLIENTS)/installed  ## test libraries that use PyTorch, unmodified, on the device
	$(CLIENTS)/bin/python -m pytest -n $(MAX_JOBS) --dist loadfile tests/clients

$(CLIENTS)/installed: requirements/clients.txt $(VENV)/test
	$(BIN)/python -m venv $(CLIENTS)
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	  > "$$($(CLIENTS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/venv.pth"
	$(CLIENTS)/bin/python $(PIP) $(PIP_FLAGS) -r $<
	@touch $@

build: $(BUILT)  ## install the package in .venv, editable

# The tests of the conformance suite's page run in it; without one they are skipped.
BROWSERS := chromium chromium-headless-shell google-chrome

browser:  ## install Chromium into the system, for some tests of make test: Debian and Ubuntu, as root
	@for name in $(BROWSERS); do if command -v $$name; then exit 0; fi; done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "As root: apt-get install chromium; dnf install chromium; pacman -S chromium"; exit 1; \
	fi; \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium

conformance: $(BUILT) $(VENV)/test  ## test all that PyTorch asks of a device: results and a page in build/conformance
	$(BIN)/python -m torch_mtia.conformance --device mtia -j $(MAX_JOBS) --folder build/conformance \
	  --json build/conformance/mtia.json --junit build/conformance/mtia.xml --report build/conformance/mtia.html

bench: $(BUILT) $(VENV)/test $(VENV)/demo  ## measure the device against PyTorch's CPU device, and write docs/performance.md
	$(call measure,performance,$(BENCHMARKS))

bench-avx2: $(BUILT) $(VENV)/test $(VENV)/demo  ## measure both without AVX-512 and AMX, and write docs/performance-avx2.md
	export $(AVX2); $(call measure,performance-avx2,eager triton_kernels compile)

# Runs the benchmarks $(2) and writes page $(1) from what they saved.
measure = mkdir -p build/$(1); status=0; for benchmark in $(2); do \
	  $(BIN)/python benchmarks/$$benchmark.py --json build/$(1)/$$benchmark.json || status=1; done; \
	$(BIN)/python benchmarks/report.py $(1) $(2:%=build/$(1)/%.json); exit $$status

TRACES := build/traces

traces: $(BUILT) $(VENV)/test  ## write a training step's Chrome trace, memory snapshot and tlparse page, in build/traces
	rm -rf $(TRACES) && mkdir -p $(TRACES)
	cd $(TRACES) && $(CURDIR)/$(BIN)/python $(CURDIR)/examples/profile_step.py --picture trace.png
	cd $(TRACES) && $(CURDIR)/$(BIN)/python $(CURDIR)/examples/memory_snapshot.py --picture snapshot.png
	TORCH_TRACE=$(CURDIR)/$(TRACES)/structured $(BIN)/python examples/train_text.py --compile --steps 2 --output $(TRACES)/loss.png
	$(BIN)/tlparse $(TRACES)/structured/*.log -o $(TRACES)/tlparse --no-browser

fuzz: $(BUILT) $(VENV)/test  ## compare FUZZ_COUNT random Triton kernels with Triton's interpreter, from FUZZ_SEED on
	$(BIN)/python -m tools.triton_fuzz --seed $(FUZZ_SEED) --count $(FUZZ_COUNT) --jobs $(FUZZ_JOBS) --features

fuzz-compile: $(BUILT) $(VENV)/test  ## compare FUZZ_COMPILE_COUNT random programs, compiled, with eager ones on the CPU
	$(BIN)/python -m tools.compile_fuzz --seed $(FUZZ_SEED) --count $(FUZZ_COMPILE_COUNT) --jobs $(FUZZ_JOBS)

fuzz-runtime: $(BUILT) $(VENV)/test  ## compare FUZZ_COUNT random interleavings of streams, memory and graphs with the CPU
	$(BIN)/python -m tools.runtime_fuzz --seed $(FUZZ_SEED) --count $(FUZZ_COUNT) --jobs $(FUZZ_JOBS)

docs: $(BUILT) $(VENV)/test  ## write docs/operators.md, docs/commands.md and the table of docs/environment.md
	$(BIN)/python -m tools.codegen.operator_table
	$(BIN)/python -m tools.reference

docs-site: $(VENV)/docs  ## build the site of README.md and docs/ in build/site
	NO_MKDOCS_2_WARNING=1 TORCH_MTIA_URL=$(URL) $(BIN)/mkdocs build --strict
	@echo "The search needs a server: $(BIN)/python -m http.server -d build/site"

dtypes: $(BUILT) $(VENV)/test  ## add to yaml/dtypes.yaml what CPU kernels take and it does not have
	$(BIN)/python -m tools.codegen.measure_dtypes

lint: $(VENV)/lint  ## check format, style and types
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/mypy

format: $(VENV)/lint  ## format the sources
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff format $(PYTHON_FILES)
	$(BIN)/ruff check --fix $(PYTHON_FILES)

sanitize:  ## run the C++ unit tests under ThreadSanitizer and AddressSanitizer
	$(MAKE) -j$(MAX_JOBS) -C tests/cpp tsan asan

stress:  ## run STRESS_COUNT random interleavings of streams, memory, events and graphs under ThreadSanitizer
	$(MAKE) -j$(MAX_JOBS) -C tests/cpp stress

clean:  ## remove what was built, but not .venv
	rm -rf build dist *.egg-info torch_mtia/*.so torch_mtia/lib torch_mtia/include $(BUILT)
	$(MAKE) -C tests/cpp clean

$(BUILT): $(VENV)/build $(BUILD_INPUTS)
	@echo "Building, $(MAX_JOBS) files at a time: some minutes the first time, then only what changed."
	$(BIN)/python setup.py build_ext --inplace
	$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

# .venv/NAME: requirements/NAME.txt is installed.
$(VENV)/build $(VENV)/demo $(VENV)/test $(VENV)/wheels $(VENV)/lint $(VENV)/docs: $(VENV)/%: requirements/%.txt | $(BIN)/python
	$(call install_torch,$(BIN)/python,$(shell grep '^torch==' requirements/build.txt))
	$(PIP_INSTALL) -r $<
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python, or name it: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) tools/machine.py $(if $(filter 1,$(CUDA)),--cuda)
	$(PYTHON) -m venv $(VENV)
