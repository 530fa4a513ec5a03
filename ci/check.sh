#!/usr/bin/env bash
# What to run before a commit: formatting, lint, types, the default tests. Needs `pip install -e '.[test]'`.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff format --check .
ruff check .
mypy
pytest "$@"
