# Every target sets up what it needs first: .venv from the pins in requirements/, once (scripts/setup.py).
#
#   RECIPE=name-or-file.yaml   what to train, evaluate or check; without it `train` takes the embedded default
#   RUN=folder                 the run or export to work on; without it the newest (of RECIPE, where that is given)
#   ARGS='…'                   more arguments for the command line, e.g. ARGS='grpo.learning_rate=1e-5'
#   PYTHON=/path/to/python3.11 the Python that .venv is made with
#   EXTRA=cpu, EXTRA=gpu       the pinned set, requirements/<EXTRA>.txt; remembered in .venv. Without it: by whether there is a GPU
#   TORCH_INDEX=URL-or-folder  where the CPU set's torch wheel comes from: an index, or a folder with wheels; remembered in .venv
#   WHEELS=folder              set up from this folder of wheels alone, without a network (docs/gpu.md)
#   PROCESSES=2                train in so many processes, one a GPU where there are GPUs (docs/scaling.md)
#   RAY=ADDRESS                train on this Ray: local, auto, HOST:PORT or ray://HOST:PORT; installs Ray first (docs/scaling.md)
#   VLLM=0, VLLM=1             leave vLLM out of the CPU set, or try again to install it; remembered in .venv
#   SKIP_CHECKS=1              set up without looking for compilers and disk space first

export RECIPE RUN PROCESSES RAY PYTHON EXTRA TORCH_INDEX VLLM SKIP_CHECKS
ifdef WHEELS
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(abspath $(WHEELS))
endif
export RUN_OR_RECIPE = $(or $(RUN),$(RECIPE))

TOOLKIT := .venv/bin/python -m toolkit
# As words for the shell, from the environment: spaces in a name survive, an empty variable is no argument.
RECIPE_WORD := $${RECIPE:+"$$RECIPE"}
PROCESSES_WORDS := $${PROCESSES:+--processes "$$PROCESSES"}
RAY_WORDS := $${RAY:+--ray "$$RAY"}
RUN_WORD := $${RUN_OR_RECIPE:+"$$RUN_OR_RECIPE"}

INSTALL_RAY := .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement requirements/ray.txt

.DEFAULT_GOAL := help
.PHONY: help setup train sweep eval ask export-merged export-gguf verify chat serve open-webui push doctor report compare runs check data test test-gpu test-ray test-open-webui bench bench-merge lock format clean distclean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS='	' read -r target text; do \
	    printf '  make %-16s %s\n' "$$target" "$$text"; done
	@echo; sed -n 's/^#   /  /p' Makefile

setup: ## create .venv with the pinned packages; nothing to do when it is ready
	@sh scripts/setup.sh

train: setup ## train RECIPE, evaluate it, export it and verify the export
	@[ -z "$$RAY" ] || $(INSTALL_RAY)
	@$(TOOLKIT) train $(RECIPE_WORD) --to verify $(PROCESSES_WORDS) $(RAY_WORDS) $(ARGS)

sweep: setup ## train variants of RECIPE with Ray and compare them (ARGS='grpo.learning_rate=1e-5,1e-4')
	@$(INSTALL_RAY)
	@$(TOOLKIT) sweep $(RECIPE_WORD) $(PROCESSES_WORDS) $(RAY_WORDS) $(ARGS)

eval: setup ## compare base and tuned on held-out problems (RUN, else the newest run)
	@$(TOOLKIT) eval $(RUN_WORD) $(ARGS)

ask: setup ## ask base, warm-up and tuned model side by side (RUN, else the newest run; ARGS='"Calculate pi."')
	@$(TOOLKIT) ask $(RUN_WORD) $(ARGS)

export-merged: setup ## write the merged 16-bit model only, and verify it (RUN, else the newest run)
	@$(TOOLKIT) export $(RUN_WORD) --format merged --to verify $(ARGS)

export-gguf: setup ## write the GGUF files, and verify them (RUN, else the newest run)
	@$(TOOLKIT) export $(RUN_WORD) --format gguf --to verify $(ARGS)

verify: setup ## prove that the exported files answer as the trained model (RUN, else the newest export)
	@$(TOOLKIT) verify $(RUN_WORD) $(ARGS)

chat: setup ## talk to an exported model, through `make serve` where that runs (RUN, else the newest export; ARGS='--question "…"')
	@$(TOOLKIT) chat $(RUN_WORD) $(ARGS)

push: setup ## upload a verified export to the Hugging Face Hub (RUN, else the newest export; ARGS='--repo ORG/NAME')
	@$(TOOLKIT) push $(RUN_WORD) $(ARGS)

serve: setup ## serve an exported model in OpenAI's protocol (RUN, else the newest export; ARGS='--port 8080 --file q4_k_m')
	@$(TOOLKIT) serve $(RUN_WORD) $(ARGS)

open-webui: setup ## set up Open WebUI in its own environment, and start it in front of an exported model (RUN)
	@$(TOOLKIT) open-webui $(RUN_WORD) $(ARGS)

doctor: setup ## say what is wrong with RUN, or with the newest run of RECIPE; without either, with this machine
	@$(TOOLKIT) doctor $(RUN_WORD) $(ARGS)

report: setup ## write the report of RUN, or of the newest run, as one HTML file
	@$(TOOLKIT) report $(RUN_WORD) $(ARGS)

compare: setup ## write one page about several runs (ARGS='RUN RUN', folders, ids or recipes)
	@$(TOOLKIT) compare $(ARGS)

runs: setup ## list the runs (ARGS=clean: what could be removed; ARGS='clean --yes' removes it)
	@$(TOOLKIT) runs $(ARGS)

check: setup ## with RECIPE: check that recipe; without: format, lint, types and layers of the code
	@if [ -n "$$RECIPE" ]; then exec $(TOOLKIT) check "$$RECIPE" $(ARGS); fi; set -ex; \
	.venv/bin/ruff format --check .; \
	.venv/bin/ruff check .; \
	.venv/bin/python -m pyright; \
	.venv/bin/lint-imports

data: setup ## show the rows of RECIPE as the model will read them, and how long they are (ARGS='--rows 5')
	@$(TOOLKIT) data $(RECIPE_WORD) $(ARGS)

test: setup ## run the tests, offline (ARGS='-k name' picks some)
	@REQUIRE_LLAMA_CPP=1 .venv/bin/python -m pytest $(ARGS)

test-gpu: setup ## test on a GPU, some minutes; without one they are skipped (REQUIRE_GPU=1: they fail; docs/gpu.md)
	@REQUIRE_LLAMA_CPP=1 .venv/bin/python -m pytest tests/gpu $(ARGS)

test-ray: setup ## test with a real Ray on this machine (90 MB to install the first time, then some minutes)
	@$(INSTALL_RAY)
	@REQUIRE_RAY=1 .venv/bin/python -m pytest tests/cluster tests/test_sweep.py $(ARGS)

test-open-webui: setup ## test with the real Open WebUI and a browser (needs chromium; 3 GB and some minutes the first time)
	@.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement requirements/browser.txt
	@TEST_OPEN_WEBUI=1 .venv/bin/python -m pytest tests/webui $(ARGS)

bench: setup ## measure rollouts and GRPO steps against a plain script with Unsloth and TRL (ARGS='--rounds 3')
	@.venv/bin/python scripts/bench/run.py $(ARGS)

bench-merge: setup ## measure the merge against copying and PEFT on 3.2 billion made-up weights (13 GB of disk; ARGS='--rounds 1')
	@.venv/bin/python scripts/bench_merge.py $(ARGS)

lock: setup ## make requirements/gpu.txt anew from its inputs (ARGS=--check: only compare; ARGS='--upgrade-package NAME')
	@.venv/bin/python scripts/lock.py $(ARGS)
	@case "$(ARGS)" in *--check*) ;; *) .venv/bin/python tests/vllm_table.py ;; esac

format: setup ## rewrite the code as `make check` wants it
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

clean: ## remove caches; keeps .venv, runs and exports
	@rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info unsloth_compiled_cache
	@find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove .venv and Open WebUI's environment as well; keeps runs, exports and chats
	@rm -rf .venv .setup.lock .open-webui/env
