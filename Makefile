# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
PY := .venv/bin/python
HEAVY := engine or browser or docker or drill or harness or peer or gpu or slow
# Real processes on two cores: a failure counts when it comes again with nothing beside it. It stays in the output.
AGAIN = { echo "!!! TESTS FAILED (above); only they are run once more, alone"; $(PY) -m pytest --last-failed --last-failed-no-failures none; }
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo up test quick check bench drills install install-dev

demo: install   ## Set everything up, start Gyre, and start a real online-RL run to watch
	$(PY) manage.py doctor
	$(PY) manage.py up --demo

up: install     ## Start Gyre without a run
	$(PY) manage.py up

test: install-dev  ## Everything this machine can test: the everyday suite on two cores, then what needs the machine
	$(PY) -m pytest -n 2 -m "not ($(HEAVY))" || $(AGAIN)
	$(PY) -m pytest -m "$(HEAVY)" || $(AGAIN)

quick: install-dev ## The everyday suite, under three minutes
	$(PY) -m pytest -n 2 -m "not ($(HEAVY))"

check: install-dev ## Style, types, import direction, front end
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) manage.py makemigrations --check --dry-run
	$(PY) tests/check_front_end.py

bench: install     ## make bench NAME=gateway
	$(PY) manage.py bench $(NAME)

drills: install-dev ## Kill things in a running system and audit what is left
	$(PY) -m pytest -m drill

install:
	@$(PYTHON) requirements/install.py

install-dev:
	@$(PYTHON) requirements/install.py --dev
