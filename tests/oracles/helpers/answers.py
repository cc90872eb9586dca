"""Writes an oracle's answers: JSON with one case per line, versions first, so that a diff names the case."""

import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def write(name, head: dict, **tables):
    """head: small facts (versions, legend); tables: name -> list of rows, one line each."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    for table, rows in tables.items():
        body = ",\n".join("    " + json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f"  {json.dumps(table)}: [\n{body}\n  ]")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    DATA.mkdir(exist_ok=True)
    (DATA / name).write_text(text)
    print(f"{name}: {len(text) / 1000:.0f} kB")
