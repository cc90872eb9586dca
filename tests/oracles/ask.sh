#!/bin/sh
# Asks every oracle again and rewrites tests/oracles/data/. Needs a Python 3.10 or later and the network (about 1 GB once).
# Usage: tests/oracles/ask.sh [NAME.py ...]      default: every oracle
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${here}/../../build/oracles

if [ ! -x "${venv}/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "${venv}"
fi
"${venv}/bin/python" -m pip install --quiet --requirement "${here}/requirements.txt"

if [ $# -eq 0 ]; then
  set -- "${here}"/*.py
fi
for oracle in "$@"; do
  oracle=${here}/$(basename "${oracle}")
  echo "== $(basename "${oracle}")"
  case $(basename "${oracle}") in
    paper_*.py) echo "by hand, with a CUDA build of PyTorch: see its first lines" ;;
    max_min_linprog.py) # prints its answer; the others write theirs
      "${venv}/bin/python" "${oracle}" >"${here}/data/max_min.json.new"
      mv "${here}/data/max_min.json.new" "${here}/data/max_min.json" ;;
    *) "${venv}/bin/python" "${oracle}" ;;
  esac
done
