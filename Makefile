# `make demo` and `make test` work on a fresh machine with Python 3.11 or 3.12 and nothing else: they make what they need.
#   PYTHON=python3.12      the interpreter to make environments with
#   CONSTRAINTS=           leave the CPU build of torch out, e.g. on a GPU machine
#   JOBS=8                 processes for the tests, but for verl's slow ones, which are processes enough
#   PINS='trl==1.9.2'      another release of the host than the newest, in an environment made anew; with one host's targets
PYTHON ?= python3
CONSTRAINTS ?= constraints/cpu.txt

# The environments come without bytecode, and to compile a host again in each process would double the time of the tests.
unexport PYTHONDONTWRITEBYTECODE
# several tests run at once: threads would take each other's cores
export OMP_NUM_THREADS := 1

# An environment a host: they disagree on transformers.
TRL := .venv-trl
VERL := .venv-verl
# vLLM's build for CPUs: 4 GB each, and it wants a release of transformers that verl does not declare, so beside the other two
VLLM_TRL := .venv-vllm-trl
VLLM_VERL := .venv-vllm-verl
# the documentation's site: neither torch nor a host
SITE := .venv-site
PINS ?=
JOBS ?= 2
# byte-compiling all that a host brings takes longer than compiling the part that is imported, when it is
PIP_INSTALL = $(1)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
PYTEST = $(1)/bin/python -m pytest
# beside an environment and not in it: transformers and TRL import it wherever it is installed
DEEPSPEED := deepspeed hjson py-cpuinfo ninja einops msgpack
FAST = -m "not slow and not nightly" -n $(JOBS) --dist loadfile --durations=10
SLOW = -m "slow and not nightly" --durations=10

.PHONY: demo demo-verl environments generate test test-core test-trl test-verl test-slow test-slow-trl test-slow-verl
.PHONY: test-nightly test-nightly-trl test-nightly-verl test-vllm check site bench bench-check bench-pretrained compat clean

## two GRPO runs, with and without the objective: demo/report.html
demo: $(TRL)/.done
	$(TRL)/bin/wm demo

## a GRPO run of verl's stock main_ppo with the objective, on a CPU
demo-verl: $(VERL)/.done
	mkdir -p demo
	PATH="$(CURDIR)/$(VERL)/bin:$$PATH" VERL_FILE_LOGGER_PATH=$(CURDIR)/demo/verl.jsonl \
	  recipes/verl/run.sh echo_grpo_tiny 'trainer.logger=[file]' trainer.total_training_steps=6
	cd tests && ../$(VERL)/bin/python -m support.show_on_verl ../demo/verl.jsonl

## what follows from the options (docs/reference.md, verl's Hydra groups), from the recipes (their README.md) and from the dependencies (docs/licences.md)
generate: $(TRL)/.done $(VERL)/.done
	$(VERL)/bin/python docs/generate.py
	$(VERL)/bin/python docs/licences.py $(TRL)/lib/python3*/site-packages $(VERL)/lib/python3*/site-packages

## the fast tests: the core without a host, and on each host what depends on one
# one after the other, as each takes all cores; the core's begin while pip still makes the other environment
test:
	$(MAKE) --jobs=2 --output-sync=target test-core $(VERL)/.done
	$(MAKE) test-trl
	$(MAKE) test-verl

# both at the same time: pip is single-threaded
environments:
	$(MAKE) --jobs=2 $(TRL)/.done $(VERL)/.done

test-core: $(TRL)/.done
	$(call PYTEST,$(TRL)) --core $(FAST)

test-trl: $(TRL)/.done
	$(call PYTEST,$(TRL)) --host $(FAST)

test-verl: $(VERL)/.done
	$(call PYTEST,$(VERL)) $(FAST) tests/on_verl tests/contract

## end-to-end runs
test-slow:
	$(MAKE) test-slow-trl
	$(MAKE) test-slow-verl

test-slow-trl: $(TRL)/.done
	$(call PYTEST,$(TRL)) $(SLOW) -n $(JOBS) --dist loadfile

# then what the core does with verl's release of transformers, which `make test` has tried with TRL's
test-slow-verl: $(VERL)/.done
	$(call PYTEST,$(VERL)) $(SLOW) tests/on_verl tests/contract tests/test_readme.py
	$(call PYTEST,$(VERL)) --host $(FAST) --ignore tests/on_verl --ignore tests/contract

## runs of minutes that show a learning effect, all examples of the tests that make some up, and ten minutes of random attacks
test-nightly: test-nightly-trl test-nightly-verl test-vllm

test-nightly-trl: $(TRL)/.done
	WM_ALL_EXAMPLES=1 $(call PYTEST,$(TRL)) --core $(FAST)
	WM_FUZZ_SECONDS=75 $(call PYTEST,$(TRL)) --core tests/test_fuzz.py
	$(call PYTEST,$(TRL)) -m nightly
	rm -rf $(TRL)/zero
	DS_BUILD_OPS=0 $(call PIP_INSTALL,$(TRL)) --no-build-isolation --no-deps --target $(TRL)/zero $(DEEPSPEED)
	PATH="$(CURDIR)/$(TRL)/zero/bin:$$PATH" PYTHONPATH=$(CURDIR)/$(TRL)/zero TORCH_EXTENSIONS_DIR=$(CURDIR)/$(TRL)/zero/ops \
	  $(call PYTEST,$(TRL)) -m nightly tests/on_trl/test_distributed.py

test-nightly-verl: $(VERL)/.done
	$(call PYTEST,$(VERL)) -m nightly tests/on_verl

## the term where vLLM generates, on both hosts; judges, world models and embeddings behind vllm serve
test-vllm: $(VLLM_TRL)/.done $(VLLM_VERL)/.done
	$(call PYTEST,$(VLLM_TRL)) -m nightly tests/on_trl/test_vllm.py tests/rewards/test_vllm.py
	$(call PYTEST,$(VLLM_VERL)) -m nightly tests/on_verl/test_vllm.py

## format, lint, types
check: $(TRL)/.done
	$(TRL)/bin/ruff format --check .
	$(TRL)/bin/ruff check .
	$(TRL)/bin/mypy

## the documentation as a website, build/site; a broken link fails
site: $(SITE)/.done
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet

## figures into benchmarks/results
bench: $(TRL)/.done $(VERL)/.done
	$(TRL)/bin/python benchmarks/step_time.py
	$(TRL)/bin/python benchmarks/bookkeeping.py
	$(VERL)/bin/python benchmarks/verl_step_time.py
	$(VERL)/bin/python benchmarks/scale.py
	$(TRL)/bin/python benchmarks/trajectories.py
	$(TRL)/bin/python benchmarks/rewards.py
	$(TRL)/bin/python benchmarks/rewards_judges.py
	$(TRL)/bin/python benchmarks/environments.py
	$(TRL)/bin/python benchmarks/evaluation.py

## which committed results were measured with other code than this, and what has changed since
bench-check: $(TRL)/.done
	$(TRL)/bin/python benchmarks/stamps.py

## what the term costs with a real model of 135M, on both hosts; half an hour on two cores that do nothing else
bench-pretrained: $(TRL)/.done $(VERL)/.done
	[ -e runs/smollm2_135m/config.json ] || $(TRL)/bin/python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
	$(TRL)/bin/python benchmarks/pretrained.py --model runs/smollm2_135m
	$(VERL)/bin/python benchmarks/verl_step_time.py --model runs/smollm2_135m --repeats 12
	$(VERL)/bin/python benchmarks/verl_whole_step.py --model runs/smollm2_135m

## releases of the hosts, old and new, each in an environment of its own: docs/compatibility.md, and what wm doctor says
compat: $(VERL)/.done
	$(PYTHON) benchmarks/compat.py $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
	$(MAKE) generate

$(TRL)/.done: EXTRAS := demo,maze,sokoban,taxi,textworld,scienceworld,search,rules,server,openenv,embed,peft,pretrained,dev
$(VERL)/.done: EXTRAS := verl,maze,sokoban,taxi,textworld,scienceworld,search,rules,server,openenv,report,pretrained,dev
$(VERL)/.done: BELOW := and sys.version_info < (3, 13)
# torch first: what comes after it would otherwise choose a build of its own
$(TRL)/.done $(VERL)/.done: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(not (sys.version_info >= (3, 11) $(BELOW)) and \
	"wm-plugin needs Python 3.11 or newer, and verl 3.12 at most: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(@D)
	$(call PIP_INSTALL,$(@D)) torch
	$(call PIP_INSTALL,$(@D)) --editable '.[$(EXTRAS)]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

# vLLM after the host, whose bound on transformers pip then only warns of; what reads images and sounds is built for CUDA
$(VLLM_TRL)/.done: EXTRAS := demo,server,peft,embed,dev
$(VLLM_VERL)/.done: EXTRAS := verl,server,dev
$(VLLM_TRL)/.done $(VLLM_VERL)/.done: pyproject.toml tests/support/vllm_cpu/pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(@D)
	$(call PIP_INSTALL,$(@D)) torch
	$(call PIP_INSTALL,$(@D)) --editable '.[$(EXTRAS)]'
	$(call PIP_INSTALL,$(@D)) ./tests/support/vllm_cpu
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(SITE)/.done: docs/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(call PIP_INSTALL,$(@D)) --requirement $<
	touch $@

clean:
	rm -rf $(TRL) $(VERL) $(SITE) $(VLLM_TRL) $(VLLM_VERL) .venv-compat build demo *.egg-info
