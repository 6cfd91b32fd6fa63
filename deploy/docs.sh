#!/usr/bin/env bash
# Build the documentation: the guide, and the reference from the docstrings, as static pages without
# anything from the network. Makes .venv if it is missing. An argument names another directory than .site.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/venv.sh
install ".[docs]"
exec "$venv/bin/python" deploy/docs/build.py "${1:-.site}"
