#!/usr/bin/env bash
# Apache Kafka and hightide side by side on this machine, in turns, never both at once; the better part of an hour.
# Makes .venv if it is missing, fetches Kafka by Maven into .compare/, writes .compare/results.json and, after
# a run at full size, deploy/COMPARISON.md. Arguments: `deploy/compare.sh --help`.
# HIGHTIDE_VENV names another environment. Where Java or Maven is missing it says "skipped", and ends well.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/deploy PYTHONDONTWRITEBYTECODE=1
venv=${HIGHTIDE_VENV:-.venv}
if [[ " $* " =~ " --page "|" --help " ]] &&
    "$venv/bin/python" -c "import confluent_kafka, hightide.spark, matplotlib" 2> /dev/null; then
    exec "$venv/bin/python" -m compare "$@"
fi
python3 -m compare.needs || exit $(($? == 77 ? 0 : $?))
source deploy/venv.sh
install ".[spark]" "confluent-kafka>=2.16" "matplotlib>=3.11"
exec "$venv/bin/python" -m compare "$@"
