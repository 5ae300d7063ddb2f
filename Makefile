# Tilewright's tasks. `make` alone lists them. Only relative paths are used, so the folder's name may hold spaces.

VENV = .venv
export VENV

# Tests start some two hundred processes of ours: without byte code on disk each compiles its modules first. An image's
# setting must not turn that off.
unexport PYTHONDONTWRITEBYTECODE

# The first Python from 3.11 to 3.13; `make PYTHON=…` names another one. Looked up only where an environment is made.
SUPPORTED = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.11; do \
	if "$$p" -c '$(SUPPORTED)' 2>/dev/null; then echo "$$p"; break; fi; done)

# The command is looked up in the recipe's shell, once: an environment that is there needs none but its own Python.
PREPARE = set -e; python="$(PYTHON)"; \
	if [ -z "$$python" ]; then echo "No Python from 3.11 to 3.13 found: install one, or make PYTHON=/path/to/it" >&2; exit 1; fi; \
	"$$python" tools/prepare.py
IN = "$(VENV)/bin/python" -m
# Two more than two cores: a test that waits for other processes leaves its own to the next. With three a quarter of the
# cores' time was idle (675 s; 554 s with four, 2026-12-01).
WORKERS ?= 4
SHAPE ?= m=256,n=100,k=784
RECORDED ?= $(wildcard ../shared/data/recorded)
REPEATS ?= 100
SOAK_S ?= 120

.PHONY: $(shell awk -F: '/^[a-z-]+:/ { print $$1 }' Makefile)

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

run: ## Start everything on this machine, tune one gemm if it is not, serve until Ctrl-C (ONCE=1: then stop; AGAIN=1: tune anyway)
	@$(PREPARE) run
	@exec "$(VENV)/bin/tilewright" up --tune gemm --shape $(SHAPE) $(if $(AGAIN),--again) $(if $(ONCE),--once)

serve: ## The API and the dashboard alone
	@$(PREPARE) run
	@exec "$(VENV)/bin/tilewright" serve

migrate: ## Bring the database's schema up to date
	@$(PREPARE) run
	@exec "$(VENV)/bin/tilewright" db upgrade

test: ## Everything a change must pass: lint, types, layers, tests (without a Chromium or PyTorch it says so and leaves their tests out)
	@$(PREPARE) dev
	@begun=$$(date +%s); status=0; $(MAKE) --no-print-directory lint types tests || status=$$?; \
	echo "make test: $$(( $$(date +%s) - begun )) s"; exit $$status

lint: ## ruff, formatting, spelling
	@$(PREPARE) dev
	@$(IN) ruff check .
	@$(IN) ruff format --check .
	@"$(VENV)/bin/codespell"

types: ## mypy --strict, and the layers between the packages
	@$(PREPARE) dev
	@$(IN) mypy -p tilewright
	@"$(VENV)/bin/lint-imports"

# In one session: no core is idle while the last of the unit tests end, and modules are imported and collected once.
# What fails is run once more by itself and must pass then: beside four hundred processes a browser may be starved of time.
tests: ## The tests that need no GPU, those in a browser among them (WORKERS=4)
	@$(PREPARE) dev
	@run() { $(IN) pytest -q -m "not gpu and not faults and not fuzz and not exhaustive" "$$@"; }; status=0; \
	run -n $(WORKERS) --dist worksteal || status=$$?; [ $$status = 0 ] || { [ $$status = 1 ] && \
	echo "== what failed beside the others, once more by itself" && run --last-failed --last-failed-no-failures none; }

unit: ## The tests that need neither a GPU nor a browser (WORKERS=4)
	@$(PREPARE) dev
	@$(IN) pytest -n $(WORKERS) --dist worksteal -q

gpu: ## Build and install PyCUDA (again)
	@$(PREPARE) gpu

torch: ## Install PyTorch's build for CPUs, with which tilewright.torch is tested (again)
	@$(PREPARE) torch

gpu-test: ## The tests on an NVIDIA GPU
	@$(PREPARE) dev
	@$(IN) pytest -m gpu

browser-test: ## The dashboard in a real Chromium (CHROMIUM=/path names one)
	@$(PREPARE) dev
	@$(IN) pytest -m browser -q -n $(WORKERS) --dist worksteal tests/browser

test-faults: ## The tests that kill, freeze and restart parts of the system (minutes)
	@$(PREPARE) dev
	@$(IN) pytest -n $(WORKERS) -m faults

test-openid: ## Nightly: sign-in at a certified OpenID provider, which npm installs into build (needs Node.js)
	@$(PREPARE) dev
	@mkdir -p build/openid && cp tests/service/api/certified/package*.json build/openid && npm ci --silent --prefix build/openid
	@OPENID_PROVIDER=build/openid/node_modules/oidc-provider $(IN) pytest -q -n 0 tests/service/api/test_certified_provider.py

test-exhaustive: ## Nightly: every kernel on every architecture, every corner on the CPU device, 25 examples an API operation (minutes)
	@$(PREPARE) dev
	@$(IN) pytest -n $(WORKERS) -q -m exhaustive

opinfo: ## Nightly: PyTorch's own samples of its operators through ours, all of them (minutes; DEVICE=cpu, cuda)
	@$(PREPARE) torch
	@"$(VENV)/bin/python" tests/opinfo.py --device $(or $(DEVICE),cpu)

fuzz-api: ## Every API operation and sequence under schemathesis, at a real server (minutes; EXAMPLES=50, SEED=1)
	@$(PREPARE) dev
	@EXAMPLES=$(or $(EXAMPLES),50) SEED=$(or $(SEED),1) $(IN) pytest -m fuzz -n 0 -s -q tests/service/api/test_whole_document.py

chaos: ## Random faults over a running service, ten minutes and more; writes benchmarks/results (CYCLES=200, SEED=1)
	@$(PREPARE) dev
	@PYTHONPATH=tests "$(VENV)/bin/python" -m chaos --cycles $(or $(CYCLES),200) --seed $(or $(SEED),1) \
		--out benchmarks/results/chaos.json

mutants: ## Nightly: faults planted in CUDA sources and in Python, and what notices them; writes docs/measuring/mutants.md (CHANGES=100, SEED=1)
	@$(PREPARE) dev
	@PYTHONPATH=tests "$(VENV)/bin/python" -m mutants --changes $(or $(CHANGES),100) --seed $(or $(SEED),1) --page docs/measuring/mutants.md

bench-kernels: ## Tune every shape of benchmarks/suite.json and time it beside cuBLAS; writes benchmarks/results (RESUME=1)
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/kernels.py $(if $(RESUME),--resume)

bench-rate: ## Verified configurations per second; writes benchmarks/results
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/rate.py --out benchmarks/results/h200/rate.json

bench-dispatch: ## What a launch costs the caller, beside PyCUDA's prepared call and torch.mm; writes benchmarks/results
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/dispatch.py --out benchmarks/results/h200/dispatch.json

bench-first-calls: ## The first calls of models' layers that nobody tuned, and what is settled then, on a GPU with PyTorch; OUT=FILE writes it
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/first_calls.py --count $(or $(COUNT),40) --seed $(or $(SEED),11) $(if $(OUT),--out $(OUT))

bench-attention: ## Attention in FP32 beside PyTorch's backends, on a GPU with PyTorch in the environment; writes benchmarks/results
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/attention.py

bench-search: ## Replay recorded spaces through our searches and Kernel Tuner's, no GPU (RECORDED=folder, REPEATS=100, RESUME=1)
	@$(PREPARE) bench
	@"$(VENV)/bin/python" benchmarks/search.py $(if $(RECORDED),"$(RECORDED)") --repeats $(REPEATS) $(if $(RESUME),--resume)

bench-service: ## The service under load on this machine, CPU only; writes benchmarks/results (SOAK_S=120, 3600 for the hour; ONLY="rate batch")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/service.py --soak-s $(SOAK_S) $(addprefix --only ,$(ONLY))

bench-attacks: ## What one key's attacks cost another key's `best`, CPU only; OUT=FILE writes it (BENCH="--only flood --runs 1 --seconds 10")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/attacks.py $(BENCH) $(if $(OUT),--out $(OUT))

bench-models: ## Whole models, eager, compiled and accelerated; needs PyTorch and transformers (BENCH="--model bert --tune-seconds 3")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/models $(BENCH)

bench-adoption: ## Kernel Tuner's scripts, tuned by both; needs Kernel Tuner (BENCH="NAME=SCRIPT.py --seconds 2.5")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/adoption/tuned.py $(BENCH)

bench-scripts: ## How many of Kernel Tuner's scripts become kernels (BENCH="NAME=FOLDER")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/adoption/scripts.py $(BENCH)

bench-triton: ## Programs with Triton kernels: captured, tuned, beside their own search, on a GPU (BENCH="APP.py --seconds 20")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/adoption/triton_programs.py $(BENCH)

bench-helion: ## Helion's examples through our remote cache, twice, on a GPU with Helion (BENCH="EXAMPLES --seconds 60")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/adoption/helion_examples.py $(BENCH)

bench-families: ## Families: tables, unseen sizes, sizes at launch, a trace, BERT (RESUME=1, BENCH="--stop-after 240")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/families.py $(if $(RESUME),--resume) $(BENCH)

bench-day-one: ## Records to ship, and answers from them as on a first day (BENCH="--kernel gemm --out FILE")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/day_one.py $(BENCH)

records: ## Records of this machine's GPU, from which untuned problems are answered (BENCH="--minutes 20")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/records.py $(BENCH)

bench-calibration: ## Whether predictions know what they don't know, from shipped records; needs no GPU (BENCH="--beyond 4096")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/calibration.py $(BENCH)

bench-seeds: ## The same job with ten seeds, its winners in one final (BENCH="--out FILE")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/seeds.py $(BENCH)

bench-gallery: ## The gallery's kernels beside NVIDIA's libraries, which CuPy calls (BENCH="--only scan")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/gallery.py $(BENCH)

bench-two-gpus: ## A fleet on a host with two GPUs (BENCH="--out FILE")
	@$(PREPARE) run
	@"$(VENV)/bin/python" benchmarks/two_gpus.py $(BENCH)

gpu-fuzz: ## Random problems, configurations, views and numbers against PyTorch in float64 (MINUTES=5, SEED=1, KERNEL=gemm)
	@$(PREPARE) run
	@"$(VENV)/bin/python" tests/gpu_fuzz.py --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) \
		$(addprefix --kernel ,$(KERNEL)) --out $(or $(OUT),benchmarks/results/gpu_fuzz.json)

gpu-check: ## Every variant, dtype and option against the reference on the GPU
	@$(PREPARE) run
	@"$(VENV)/bin/python" tests/gpu_check.py

gpu-memcheck: ## Every variant under compute-sanitizer, at small shapes
	@$(PREPARE) run
	@compute-sanitizer --tool memcheck --error-exitcode 9 "$(VENV)/bin/python" tests/sanitize.py

gpu-racecheck: ## The same, for races in shared memory
	@$(PREPARE) run
	@compute-sanitizer --tool racecheck --error-exitcode 9 "$(VENV)/bin/python" tests/sanitize.py

reports: ## The ladder reports of this machine's first GPU; writes build/reports (minutes)
	@$(PREPARE) run
	@for kernel in gemm gemv linear; do \
	"$(VENV)/bin/tilewright" report $$kernel --device cuda:0 --known benchmarks/results/h200/kernels.json --out build/reports || exit 1; done

references: ## Write docs/rest.md and the tables in docs/cli.md, docs/settings.md and docs/measuring
	@$(PREPARE) run
	@"$(VENV)/bin/python" tools/references.py

docs: ## Build the documentation as a site, which `tilewright serve` offers at /guide (strict: a broken link fails)
	@$(PREPARE) dev
	@$(IN) sphinx -q -b html -W --keep-going -d build/doctrees docs service/dashboard/guide

screenshots: ## Write docs/screenshots from real results: H200, a recording (RECORDED=folder), this CPU; needs Chromium
	@$(PREPARE) dev
	@"$(VENV)/bin/python" tools/screenshots.py $(if $(RECORDED),"$(RECORDED)")

package: docs ## Build the site, the sdist and the wheel, install each in a bare environment and run it
	@$(PREPARE) dev
	@"$(VENV)/bin/python" tools/package.py

lock: ## Write requirements/*.lock anew (needs uv; UPGRADE=1 takes the newest versions)
	@python="$(PYTHON)"; "$$python" tools/lock.py

hooks: ## Run the linters at every git commit
	@$(PREPARE) dev
	@$(IN) pre_commit install

clean: ## Remove the environment and everything built; your data stay
	rm -rf "$(VENV)" build dist service/dashboard/guide .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
