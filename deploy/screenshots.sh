#!/usr/bin/env bash
# Make the pictures of deploy/CONSOLE.md again: starts a cluster, has its leader die with records of its own, and
# looks at that with Chromium (apt-get install chromium-headless-shell). HIGHTIDE_VENV names another environment than .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/venv.sh
install ".[demo,dev]"
PYTHONPATH=tests/support exec "$venv/bin/python" tests/support/console_pictures.py deploy/pictures
