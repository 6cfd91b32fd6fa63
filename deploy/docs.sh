#!/usr/bin/env bash
# Build the documentation: the guide, and the reference from the docstrings, as static pages without
# anything from the network. Makes .venv if it is missing. An argument names another directory than .site.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${HIGHTIDE_VENV:-.venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ".[docs]"
rm -rf build ./*.egg-info
exec "$venv/bin/python" deploy/docs/build.py "${1:-.site}"
