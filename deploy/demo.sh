#!/usr/bin/env bash
# Run the demo on a fresh machine: makes .venv if it is missing, installs hightide with Spark, a Java if
# there is none, and the flights, and replays them. Arguments go to `hightide demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/venv.sh
install ".[demo]"
exec "$venv/bin/hightide" demo "$@"
