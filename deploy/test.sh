#!/usr/bin/env bash
# Run every test. Makes .venv if it is missing and installs what the tests need.
# HIGHTIDE_VENV names another environment; arguments go to pytest (`-n 0`: one file after the other).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${HIGHTIDE_VENV:-.venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# Installed, not linked: Spark finds the format by itself only in an installed package.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip uninstall -qq --disable-pip-version-check --yes hightide
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ".[demo,dev]"
rm -rf build ./*.egg-info
# What pytest makes of the tests is kept, and made by one: five workers would each make all of it,
# ten seconds each. The archive is written meanwhile.
unset PYTHONDONTWRITEBYTECODE
[ -d tests/__pycache__ ] || "$venv/bin/python" -m pytest --collect-only -qq "$@" >/dev/null &
"$venv/bin/python" tests/support/brief_jvm.py
wait
# More workers than two cores: tests of processes and of Spark wait for half of their time.
exec "$venv/bin/python" -m pytest -n 5 --dist loadfile --no-loadscope-reorder "$@"
