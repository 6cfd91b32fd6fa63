#!/usr/bin/env bash
# Run the demo on a fresh machine: makes .venv if it is missing, installs hightide with Spark, a Java if
# there is none, and the flights, and replays them. Arguments go to `hightide demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${HIGHTIDE_VENV:-.venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ".[demo]"
rm -rf build ./*.egg-info
exec "$venv/bin/hightide" demo "$@"
