# Everything here works on a fresh Debian 12 or 13, with its Python and Java; `make run` and the others install what is missing first.
MAKEFLAGS += --no-print-directory
# a shell that forbids bytecode would have every process that the tests start compile all modules anew
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help setup run up down status test test-all test-stores test-cluster test-downstream test-kafka test-celery kafka-tests quick-tests lint form types spark-classes checks docs screenshots pictures wheel tarball clean

PYTHON := .venv/bin/python
SLUICE := .venv/bin/sluice
KAFKA_TESTS := tests/etl/downstream/sinks/test_kafka_*.py tests/etl/downstream/sinks/test_schema_registry.py tests/etl/verify/reapply/test_reapply_kafka.py tests/etl/copy/test_bootstrap_topics.py
DOWNSTREAM_TESTS := tests/etl/downstream tests/etl/verify tests/etl/apply tests/etl/copy/test_random_tables.py \
	tests/etl/copy/backfill/test_soft_deleted_rows.py tests/etl/copy/backfill/test_open_versions.py

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: ## install what is missing (Debian packages need root; Python packages go to .venv)
	@bin/setup

run: setup ## the whole: start everything, replay recorded TiDB traffic, compare, stop
	@$(SLUICE) run

up: setup ## start everything and leave it running
	@$(SLUICE) up

down: ## stop what `make up` started
	@if [ -x $(SLUICE) ]; then $(SLUICE) down; fi

status: ## what runs, where, and how far replication is
	@if [ -x $(SLUICE) ]; then $(SLUICE) status; else echo 'not set up yet: make setup'; fi

lint: form types ## ruff (form and rules) and mypy

form: setup
	@$(PYTHON) -m ruff format --check --quiet .
	@$(PYTHON) -m ruff check .

types: setup
	@$(PYTHON) -m mypy

spark-classes: setup ## make Spark start in half the time: an archive of its classes in .venv (190 MB), once
	@$(PYTHON) -m sluice.devstack.launch.class_archive

# side by side, as each keeps one core busy: mypy takes 45 s without its cache, the archive of classes 30 s
checks: setup
	@$(MAKE) -j2 lint spark-classes

# mypy beside the tests, which wait for servers a third of their time
test: form ## lint, types and the quick tests: what to run after a change, 10 minutes at most
	@$(MAKE) -j2 types quick-tests

quick-tests: spark-classes
	@$(PYTHON) -m tests.flaky -m 'not slow' --hypothesis-profile quick

test-all: checks ## the slow tests, too: whole stacks, long sweeps of kills and random histories
	@$(PYTHON) -m tests.flaky

test-stores: setup ## crash and freeze tests with an S3 server that fails in place of folders
	@$(PYTHON) -m pytest -p tests.object_store.everywhere -n0 --timeout 3000 -o faulthandler_timeout=6000 $$(cat tests/object_store/crash_and_freeze.txt)

test-cluster: setup ## all recordings through a Spark cluster whose workers and master die meanwhile
	@$(PYTHON) -m pytest -n0 -s tests/etl/spark/every_recording.py

test-downstream: setup ## sinks, DDL, checkpoint, verification and applying against a real MySQL, or a server of yours: PORT=3306
	@$(if $(PORT),$(PYTHON) -m pytest -n0 --downstream-server $(PORT),tests/real_mysql.sh) $(DOWNSTREAM_TESTS)

test-kafka: setup ## the Kafka sink against a real Kafka broker and schema registry, from Maven Central
	@$(PYTHON) -m tests.kafka_broker $(KAFKA_TESTS)

test-celery: setup ## hosts of Airflow's Celery workers that die and freeze, with a real broker: Debian's redis-server
	@$(PYTHON) -m pytest -n0 -s -o faulthandler_timeout=2400 tests/sluice_airflow/celery_hosts.py

kafka-tests:
	@echo $(KAFKA_TESTS)

docs: setup ## the documentation as a site in site/, made without network; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo 'docs: site/index.html'

screenshots: setup ## pictures of the pages in docs/pages, of the stack with live traffic
	@$(PYTHON) docs/_site/screenshots.py

pictures: setup ## each page in each state at three widths, into pictures/, to look at (8 minutes)
	@mkdir -p pictures
	@SLUICE_TEST_PICTURES=pictures $(PYTHON) -m pytest -n0 -q -m '' tests/plugins/test_states_of_pages.py
	@echo 'pictures: pictures/'

wheel: setup ## the package in dist/, and the versions of others it was tested with
	@rm -rf dist
	@$(PYTHON) -m hatchling build -t wheel -d dist
	@cd providers/airflow && $(abspath $(PYTHON)) -m hatchling build -t wheel -d ../../dist
	@.venv/uv/bin/uv export --quiet --frozen --no-default-groups --no-emit-project -o dist/requirements.txt
	@$(PYTHON) -m zipfile -e dist/sluice-*.whl dist/unpacked && mv dist/unpacked/sluice/devstack/constraints.txt dist/ && rm -rf dist/unpacked

tarball: setup ## a pump as a TiUP package in dist/, for machines with a Python and nothing else
	@$(PYTHON) -m deploy.tiup dist && rm -rf dist/pump

clean: down ## stop everything and remove the state folder, caches and what was built (.venv stays)
	@rm -rf .sluice site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
