# Everything runs in .venv, which the first command makes. ARGS reach the program: make run ARGS="--seed 3"

PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt
PY = .venv/bin/python
PROCESSES = $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")
ALL = -m "$(1) and not ray and not compiled" --numprocesses=$(PROCESSES) --dist=worksteal
TEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest

.PHONY: run test test-slow test-ray test-compiled style lint learn learn-long datasets learn-offline bench chaos signals soak clean

run: .venv/.run
	$(PY) examples/dqn.py $(ARGS)

# Tests run on several processes; those that ARGS names, as in make test ARGS="tests/basics", on one, which starts at once.
# One thread of torch: on a machine that does other work too, operations on several wait for the slowest of them.
# Compiled files are kept, also where the environment says otherwise, since many tests start programs.
# One process more than there are cores, at most 4, because many tests wait. mypy, which takes a minute, runs beside them.
test: style
	@.venv/bin/mypy & types=$$!; $(TEST) $(or $(ARGS),$(call ALL,not slow)); tests=$$?; wait $$types || { echo "mypy found errors, see above."; exit 1; }; exit $$tests

# Further cases and whole programs; with ARGS, make test runs those too.
test-slow: .venv/.dev
	$(TEST) $(call ALL,slow)

# One process, because a cluster takes seconds to start.
test-ray: .venv/.dev
	$(TEST) -m ray $(or $(ARGS),tests/distributed)

# Compiles the gradient steps of all policies, which takes eight minutes; packages are kept in DING_LITE_CACHE.
test-compiled: .venv/.dev
	$(TEST) -m compiled $(or $(ARGS),tests/compiling)

style: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

lint: style
	.venv/bin/mypy

learn: .venv/.dev
	$(PY) benchmarks/learning.py $(ARGS)

datasets: .venv/.dev
	$(PY) benchmarks/collect_datasets.py $(ARGS)

learn-offline: .venv/.dev
	$(PY) benchmarks/offline_learning.py $(ARGS)

# Without ARGS, the runs on datasets too.
learn-long: .venv/.dev
	@$(PY) benchmarks/learning.py --long $(ARGS); reached=$$?; $(if $(ARGS),,$(PY) benchmarks/offline_learning.py --all --again || reached=1;) exit $$reached

bench: .venv/.dev
	@for name in imports engine reports collect learners replay datasets run_saves gae vtrace metrics logging_cost async_overlap workers whole_runs; do $(PY) benchmarks/$$name.py || exit 1; done

chaos: .venv/.dev
	$(PY) benchmarks/chaos.py $(ARGS)

signals: .venv/.dev
	$(PY) benchmarks/signals.py $(ARGS)

soak: .venv/.dev
	$(PY) benchmarks/soak.py $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/pip setup.py constraints.txt
	$(PIP) --editable '.[cli]'
	touch $@

.venv/.dev: .venv/bin/pip setup.py constraints.txt
	$(PIP) --editable '.[cli,plot,tb,wandb,video,atari,box2d,mujoco,agents,robotics,offline,ray,storage,export,test,dev]'
	touch $@ .venv/.run
