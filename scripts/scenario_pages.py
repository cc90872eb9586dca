"""Pages of simulated figures: asks the program about a folder of scenarios, and writes or checks the folder's README.md.

The program is build/release/rehearse, or what $REHEARSE names.
"""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("REHEARSE", str(ROOT / "build" / "release" / "rehearse"))
GB = 1e9


class Folder:
    """The scenarios of one folder under scenarios/, by their names."""

    def __init__(self, name):
        self.place = ROOT / "scenarios" / name
        self.named = set()

    @lru_cache(maxsize=None)
    def ask(self, command, name, *settings):
        """The JSON of `rehearse COMMAND name.yaml --set ...`; an answer of "no" (exit code 1) is an answer."""
        words = [PROGRAM, command, str(self.place / f"{name}.yaml"), "--json", "--quiet"]
        for s in settings:
            words += ["--set", s]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        if done.returncode > 1:
            raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
        return json.loads(done.stdout)

    def run(self, name, *settings):
        return self.ask("run", name, *settings)

    def largest(self, command, name, *settings):
        """What max-batch or max-model found: the size and its answer, or None where nothing fits."""
        found = self.ask(command, name, *settings)
        return found["tried"][found["largest"]] if found["largest"] is not None else None

    def table(self, rows, columns):
        """rows: (what, what is claimed, names of scenarios with ", " between, a function that answers, why they differ)."""
        rows = list(rows)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            answers = list(pool.map(lambda row: row[3](), rows))
        for row in rows:
            self.named.update(row[2].split(", "))
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        for (what, claim, scenario, _, why), ours in zip(rows, answers):
            lines.append(f"| {what} | {claim} | {ours} | {why} | {scenario} |")
        return "\n".join(lines)

    def keep(self, text, writer):
        """Writes the page, or with --check [PERCENT] compares it: numbers may differ by so much. Every scenario must have a row."""
        there = {f.stem for f in self.place.glob("*.yaml")}
        for problem, names in (("no such scenario", self.named - there), ("no row for", there - self.named)):
            if names:
                raise SystemExit(f"{problem}: {', '.join(sorted(names))}")
        page = self.place / "README.md"
        if "--check" not in sys.argv[1:]:
            page.write_text(text)
            return
        percent = float(sys.argv[2]) if len(sys.argv) > 2 else 0
        old = (page.read_text() if page.exists() else "").splitlines()
        new = text.splitlines()
        stale = [(a, b) for a, b in zip(old, new) if not same(a, b, percent)]
        for a, b in stale:
            print(f"- {a}\n+ {b}")
        if stale or len(old) != len(new):
            raise SystemExit(f"{page.relative_to(ROOT)} is not what {writer} writes")


def same(old, new, percent):
    """The same words, and numbers that differ by no more than that."""
    number = re.compile(r"[-+]?[\d,]*\.?\d+")
    if number.sub("#", old) != number.sub("#", new):
        return False
    values = [[float(n.replace(",", "") or 0) for n in number.findall(t)] for t in (old, new)]
    return all(abs(a - b) <= percent / 100 * max(abs(a), abs(b)) + (0.1 if percent else 0) for a, b in zip(*values))
