#!/usr/bin/env python3
"""Runs the code cells of notebooks in order, without Jupyter. Usage: run.py NOTEBOOK..."""
import json
import os
import sys

for path in map(os.path.abspath, sys.argv[1:]):
    os.chdir(os.path.dirname(path))  # as Jupyter does
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    if any(cell.get("outputs") for cell in notebook["cells"]):
        sys.exit(f"{path}: committed with outputs")
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path}, cell {number}", "exec"), names)
