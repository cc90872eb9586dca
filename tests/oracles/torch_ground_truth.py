"""Does calibrate/ground_truth still run? Trains its toy models on the CPU, resumes, and checks what it wrote against arithmetic.
Its times are of this machine and not kept; the rows that it would write for each case, with made-up times, are: data/ground_truth_rows.csv.
Run by ask.sh beside the oracles; exit code 1 and a reason when it does not."""

import csv
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "calibrate" / "ground_truth"
sys.path.insert(0, str(HERE))

import attention  # noqa: E402
import measure  # noqa: E402
from models import SHAPES, Model  # noqa: E402


def check(condition, what):
    if not condition:
        print(f"torch_ground_truth.py: {what}", file=sys.stderr)
        sys.exit(1)


def run(program, *arguments):
    done = subprocess.run([sys.executable, str(HERE / program), "--device", "cpu", "--tiny", *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"{program} ended with {done.returncode}: {done.stderr}")
    return done.stderr


# Published counts: Radford 2019 (with the padded vocabulary: 47 * 768 more), Llama 3 8B's config (8.03 B).
check(SHAPES["gpt2"].parameters() == 124439808 + 47 * 768, "parameters of GPT-2")
check(SHAPES["llama-3-8b"].parameters() == 8030261248, "parameters of Llama 3 8B")
for name in ("tiny-gpt", "tiny-llama"):
    check(sum(p.numel() for p in Model(SHAPES[name]).parameters()) == SHAPES[name].parameters(), f"parameters of {name}")
check([attention.median_interval(n) for n in (5, 6, 10, 20, 50)] == [(1, 5), (1, 6), (2, 9), (6, 15), (18, 33)], "median intervals")

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "out"
    run("measure.py", "--out", str(out), "--details", str(Path(folder) / "details"), "--only", "tiny-gpt")
    first = (out / "runs.csv").read_text()
    run("measure.py", "--out", str(out))
    text = (out / "runs.csv").read_text()
    check(text.startswith(first), "a resumed run keeps its rows")
    with (out / "runs.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    check(len(rows) == len(measure.cases(True)), "one row per case")
    check(len({r["row_id"] for r in rows}) == len(rows), "row ids differ")
    for r in rows:
        tokens = int(r["micro_batch"]) * int(r["seq_len"]) * int(r["grad_accum"])
        check(abs(float(r["tokens_per_s_per_gpu"]) * float(r["step_time_s"]) - tokens) < 1e-3 * tokens, "tokens per second")
        check(r["outcome"] == "ok" and r["framework"] == "plain", "outcome")
    losses = [json.loads(line)["answer"]["loss"] for line in (out / "details.jsonl").read_text().splitlines()]
    # Random tokens over 512 words: no model can be much better than log 512 = 6.24, or a sound one much worse.
    check(all(5 < loss * 2 < 14 for loss in losses), f"losses {losses}")
    # Killed again and again it loses no row, and the rows that are there stay as they are.
    killed = Path(folder) / "killed"
    draw = random.Random(5)
    before, kills = "", 0
    for _ in range(60):
        process = subprocess.Popen([sys.executable, str(HERE / "measure.py"), "--device", "cpu", "--tiny", "--out", str(killed)], stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=draw.uniform(1.5, 3.5))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        now = (killed / "runs.csv").read_text() if (killed / "runs.csv").exists() else ""
        check(now.startswith(before), "a row was lost")
        before = now
    check(kills > 1, "it was never killed")
    run("measure.py", "--out", str(killed))
    with (killed / "runs.csv").open(newline="") as f:
        rows = list(csv.reader(f))
    check(rows[0] == measure.COLUMNS and all(len(r) == len(measure.COLUMNS) for r in rows), "rows are complete")
    check(len({r[0] for r in rows}) == len(rows) == len(measure.cases(True)) + 1, "each case once")
    # A line that was cut off is measured again; a foreign table is refused.
    whole = (killed / "runs.csv").read_text()
    (killed / "runs.csv").write_text(whole[:-30])
    run("measure.py", "--out", str(killed))
    check(len((killed / "runs.csv").read_text().splitlines()) == len(rows), "the row that was cut off is there again")
    (killed / "runs.csv").write_text("a,b\n1,2\n")
    check(subprocess.run([sys.executable, str(HERE / "measure.py"), "--device", "cpu", "--tiny", "--out", str(killed)], capture_output=True).returncode == 2, "a foreign table is refused")
    # The contract of `validate`: its README names every column that we share with it.
    contract = (Path(__file__).resolve().parents[1] / "accuracy" / "runs" / "README.md").read_text()
    own = {"peak_reserved_gib", "device_used_gib", "host_time_s", "step_time_spread", "num_alloc_retries", "source", "note", "derived"}
    missing = [c for c in measure.COLUMNS if c not in own and c not in contract]
    check(not missing, f"columns that the contract does not know: {missing}")
    run("attention.py", "--out", str(out / "attention.json"), "--budget", "20")
    series = json.loads((out / "attention.json").read_text())["series"]
    check(any(s["operation"] == "attention_backward" for s in series), "attention was timed")
    told = run("attention.py", "--out", str(out / "attention.json"), "--budget", "20")
    again = json.loads((out / "attention.json").read_text())["series"]
    check(again[: len(series)] == series and len(again) < 2 * len(series), "a second run of attention.py keeps what the first measured")
    (out / "attention.json").write_text((out / "attention.json").read_text()[:-40])
    refused = subprocess.run([sys.executable, str(HERE / "attention.py"), "--device", "cpu", "--tiny", "--out", str(out / "attention.json")], capture_output=True, text=True)
    check(refused.returncode == 2 and "attention.json:" in refused.stderr, "a file that was cut off is refused with its line")

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "operators.jsonl"
    run("operators.py", "--out", str(out), "--budget", "60")
    series = [json.loads(line) for line in out.read_text().splitlines()]
    check({s["group"] for s in series} == {"sustained", "passes", "indices", "grouped", "flex", "copies", "host"}, "a group of operators is missing")
    check(all(s["median_s"] > 0 for s in series) and len({(s["group"], s["name"]) for s in series}) == len(series), "operators are timed once each")
    run("operators.py", "--out", str(out), "--budget", "60", "--only", "passes *")
    check(len(out.read_text().splitlines()) == len(series), "a second run adds nothing to what is measured")

# The row that each case of a real GPU would write, with an answer made up: `validate` must be able to simulate it.
made_up = {"torch": "2.9", "step_time_s": 0.5, "step_times_s": [0.5, 0.51], "host_s": 0.1, "device_used_bytes": 40 << 30,
           "statistics": {"allocated_bytes.all.peak": 30 << 30, "reserved_bytes.all.peak": 34 << 30, "num_alloc_retries": 0}}
with (Path(__file__).parent / "data" / "ground_truth_rows.csv").open("w", newline="") as f:
    writer = csv.DictWriter(f, measure.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(measure.row_of(case, made_up, "h200-sxm", i + 1) for i, case in enumerate(measure.cases(False)))
print("calibrate/ground_truth runs")
