#!/usr/bin/env bash
# Fuzz what strangers send: ten million executions of the targets in tests/fuzz, and one table. Hours on two cores.
# Arguments choose targets by name, `--runs N` how many executions: `deploy/fuzz.sh --help` lists them. Makes .venv if it is
# missing. What was learned stays in .evidence/fuzz, where a second run goes on. HIGHTIDE_VENV names another environment.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1
venv=${HIGHTIDE_VENV:-.venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" --upgrade pip
"${pip[@]}" ".[dev]" "atheris>=3"
"${pip[@]}" --force-reinstall --no-deps .
rm -rf build ./*.egg-info
exec nice -n 5 "$venv/bin/python" tests/fuzz "$@"
