# Two commands do all the set-up: `make demo` and `make test`. Needs Python 3.11 or newer, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where onnxruntime-gpu has a wheel; the plain one stands in elsewhere.
GPU_WHEEL := platform_machine == "x86_64" or platform_machine == "AMD64"
PLAIN_WHEEL := platform_machine != "x86_64" and platform_machine != "AMD64"
STAMP := $(VENV)/.installed

.PHONY: demo test check prove install format lock clean

demo: install  ## the main job: PredNet on every engine, on CUDA where there is any
	$(BIN)/xbench run prednet --ep cuda,cpu --allow unavailable

test: install  ## every test but the long proofs, one file per process at a time
	OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

check: install  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

prove: install  ## the long proofs, two hours on a quiet machine: what the documents claim
	HYPOTHESIS_PROFILE=search $(BIN)/pytest -q $$(grep -l hypothesis tests/test_*.py)
	$(BIN)/pytest -m prove -s
	$(BIN)/python -m benchmarks.harness
	$(BIN)/python -m benchmarks.many_cases
	$(BIN)/python -m benchmarks.replicates
	$(BIN)/python -m benchmarks.reference
	$(BIN)/python -m benchmarks.exports
	$(BIN)/python -m benchmarks.training alexnet autoenc autoencoder memnet residual seq2seq speech vgg
	$(BIN)/python -m benchmarks.training deepq --seeds 0 1 2
	$(BIN)/python -m benchmarks.known_models tf
	$(BIN)/python -m benchmarks.recurrent_pt
	$(BIN)/python -m benchmarks.recurrent_tf
	$(BIN)/python -m benchmarks.full_size
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.mutants
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.false_alarms
	$(BIN)/python -m benchmarks.power
	$(BIN)/python -m benchmarks.aa

install: $(STAMP)

# torch first and alone: a resolver that sees a looser range of it fetches gigabytes of CUDA.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $$(grep '^torch==' requirements.lock)
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: install  ## write down what is installed
	{ sed -n '/^#/p' requirements.lock; \
	  $(BIN)/pip freeze --all --exclude-editable | sed -e '/^pip==/d' -e 's/+cpu$$//' \
	    -e 's/^onnxruntime-gpu==\(.*\)/onnxruntime-gpu==\1 ; $(GPU_WHEEL)\nonnxruntime==\1 ; $(PLAIN_WHEEL)/'; \
	} > requirements.new
	mv requirements.new requirements.lock

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
