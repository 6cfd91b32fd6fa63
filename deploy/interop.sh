#!/usr/bin/env bash
# Programs that nobody here wrote, against three brokers of hightide: Kafka's own tools, other clients, their suites, and
# Spark's Kafka connector. Three quarters of an hour; a run of all writes deploy/INTEROP.md. Arguments choose some by
# name: `deploy/interop.sh --help` lists them.
# Makes .venv if it is missing, fetches Kafka by Maven, kafkajs and a Spark into .compare/. HIGHTIDE_VENV names another environment.
# What this machine lacks (Java, Maven, Go, Node, kcat) is skipped, and said.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/deploy PYTHONDONTWRITEBYTECODE=1
source deploy/venv.sh
install ".[dev]"
exec "$venv/bin/python" -m interop "$@"
