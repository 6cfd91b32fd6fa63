#!/usr/bin/env bash
# Fuzz what strangers send: ten million executions of the targets in tests/fuzz, and one table. Hours on two cores.
# Arguments choose targets by name, `--runs N` how many executions: `deploy/fuzz.sh --help` lists them. Makes .venv if it is
# missing. What was learned stays in .evidence/fuzz, where a second run goes on. HIGHTIDE_VENV names another environment.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1
source deploy/venv.sh
install ".[dev]" "atheris>=3"
exec nice -n 5 "$venv/bin/python" tests/fuzz "$@"
