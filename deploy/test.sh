#!/usr/bin/env bash
# Run every test. Makes .venv if it is missing and installs what the tests need.
# HIGHTIDE_VENV names another environment; arguments go to pytest (`--workers 0`: one file after the other).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${HIGHTIDE_VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
fi
# Installed, not linked: Spark finds the format by itself only in an installed package. What builds it is
# in the environment already: one of its own for each build would be a third of this step.
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" "setuptools>=77"
rm -rf build  # of an installation that was ended: what was removed since would be installed again
"${pip[@]}" --no-build-isolation ".[demo,dev]"
rm -rf build ./*.egg-info
# What pytest makes of the tests is kept for the next run.
unset PYTHONDONTWRITEBYTECODE
# More workers than two cores: tests of processes and of Spark wait for half of their time.
exec "$venv/bin/python" -m pytest --workers 5 "$@"
