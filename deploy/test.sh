#!/usr/bin/env bash
# Run every test. Makes .venv if it is missing and installs what the tests need.
# HIGHTIDE_VENV names another environment; arguments go to pytest (`--workers 0`: one file after the other).
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/venv.sh
# What builds it is in the environment already: one of its own for each build would be a third of this step.
install "setuptools>=77"
install --no-build-isolation ".[demo,dev]"
# What pytest makes of the tests is kept for the next run.
unset PYTHONDONTWRITEBYTECODE
# More workers than two cores: tests of processes and of Spark wait for half of their time.
exec "$venv/bin/python" -m pytest --workers 5 "$@"
