# `make help` lists the targets. Everything runs in the project's own .venv, created on first use.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) --editable '.[all,dev]'
	@touch $@

demo: $(READY) ## install, train on the handwritten digits, show the result
	$(BIN)/scs train digits --out runs/digits

test: $(READY) ## install, run all tests except those of the browser and the docs
	$(BIN)/python -m pytest -n 2 -m "not browser and not docs and not scale"

test-fast: $(READY) ## run the quick tests
	$(BIN)/python -m pytest -n 2 -m "not slow and not browser and not docs and not scale"

test-browser: $(READY) ## open reports in a real Chromium (CHROMIUM=path of another one)
	$(PIP) --editable '.[all,browser]'
	$(BIN)/python -m pytest tests/browser

test-onnx: $(READY) ## run the steps of docker/onnx.Dockerfile in a new environment without PyTorch
	$(BIN)/python tools/test_onnx_image.py

test-api: $(READY) ## compare the REST API with its OpenAPI document, by schemathesis
	-test -x build/api-env/bin/schemathesis || ($(PYTHON) -m venv build/api-env && \
		build/api-env/bin/python -m pip install --quiet schemathesis)
	$(BIN)/python -m pytest tests/server/test_openapi.py

test-scale: $(READY) ## test with real SLURM, Dask, PostgreSQL and two network nodes (as root, on Debian)
	-apt-get install -y -qq slurm-wlm munge postgresql iproute2 > /dev/null
	$(PIP) --editable '.[all,scale]'
	$(BIN)/python -m pytest tests/scale

test-min: test-min-loss ## run the quick tests with the lowest supported versions, in .venv-min
	$(PYTHON) tools/lowest_versions.py > .venv-min.txt
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/python -m pip install --quiet --constraint .venv-min.txt --editable '.[all,dev]'
	.venv-min/bin/python -m pytest -n 2 -m "not slow and not browser and not docs and not scale"

# Left out: a test that needs the extra `train`, and one at whose end the Gloo of old versions may
# hang (pytorch/pytorch#154976).
test-min-loss: ## run the quick tests of the losses with the lowest PyTorch and NumPy of the base install
	$(PYTHON) -m venv build/loss-env
	$(PYTHON) tools/lowest_versions.py dev > build/loss-env/lowest.txt
	build/loss-env/bin/python -m pip install --quiet --constraint build/loss-env/lowest.txt --editable . \
		pytest pytest-xdist hypothesis psutil pytorch-metric-learning tomli-w
	build/loss-env/bin/python -m pytest -n 2 -m "not slow" tests/kernels tests/methods tests/test_pml.py \
		tests/nn/test_head.py tests/nn/test_taps.py \
		--ignore tests/methods/shared/test_plugins.py \
		--deselect tests/methods/shared/test_memory_bank.py::test_several_processes_have_the_memory_of_one

check: $(READY) ## check format, lint, types, import directions and vocabulary
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_vocabulary.py

fix: $(READY) ## format, and fix what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure against other libraries; PIPELINE='--large FOLDER --weights FILE' for own images
	$(PIP) --editable '.[all,bench]'
	$(BIN)/python benchmarks/pairs.py
	$(BIN)/python benchmarks/small_batches.py
	$(BIN)/python benchmarks/conformance.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/neighbours.py --vectors 100000
	$(BIN)/python benchmarks/features.py --images 200000
	$(BIN)/python benchmarks/pipeline.py $(PIPELINE)

torture: $(READY) ## damage files and kill commands at random; ONLY=flips,files SCALE=0.1 (or full) SEED=1 MINUTES=60
	-test -e /usr/lib/*/faketime/libfaketimeMT.so.1 || apt-get install -y -qq faketime > /dev/null
	cd tests && ../$(BIN)/python -m torture --scale $(or $(SCALE),1) --seed $(or $(SEED),0) \
		--minutes $(or $(MINUTES),60) $(if $(ONLY),--only $(ONLY))

audit: $(READY) ## check licences and known vulnerabilities; write build/sbom.cdx.json
	-test -x build/audit-env/bin/pip-audit || ($(PYTHON) -m venv build/audit-env && \
		build/audit-env/bin/python -m pip install --quiet pip-audit)
	$(BIN)/python tools/audit.py --pip-audit build/audit-env/bin/pip-audit

docs: $(READY) ## update docs/methods.md and the table of arrangements, run the notebook, build the site in build/site
	$(PIP) --editable '.[all,docs,integrations]'
	$(BIN)/python benchmarks/arrangements.py
	$(BIN)/scs methods --markdown > docs/methods.md
	$(BIN)/python -m pytest -m docs
	$(BIN)/mkdocs build --strict

dist: ## build sdist and wheel in dist/, install the wheel in a new environment and test it
	rm -rf dist build/dist-env
	$(PYTHON) -m venv build/dist-env
	build/dist-env/bin/python -m pip install --quiet build
	build/dist-env/bin/python -m build --outdir dist .
	$(PYTHON) -m venv --clear build/dist-env
	build/dist-env/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[train,paper]"
	cd build && dist-env/bin/python ../tools/test_wheel.py

.PHONY: help demo test test-fast test-browser test-onnx test-api test-scale test-min test-min-loss check fix bench torture audit docs dist
