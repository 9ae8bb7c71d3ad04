"""`xbench run FILE.onnx --ep cpu` against Polygraphy on the same file: wall time and median.

    pip install --target DIR polygraphy
    .venv/bin/python -m benchmarks.race FILE.onnx --shape x=1x3x224x224 --polygraphy DIR [--pairs 5]

Both do as many runs of the model: Polygraphy its warm-up and iterations; xbench its first run, its
warm-up and its samples (counted from the result; the iterations are chosen for the same total).
The commands alternate. The command of Polygraphy prints a mean; the medians are those of xbench and
of a loop over Polygraphy's own runner with as many runs, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from xbench.bench import now

WARM_UP, ITERATIONS = 5, 20


LOOP = """
import statistics, sys
import numpy as np
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
file, name, shape, warm_up, iterations = sys.argv[1:]
extents = [int(n) for n in shape.split("x")]
feed = {name: np.random.default_rng(0).random(extents, np.float32)}
with OnnxrtRunner(SessionFromOnnx(file)) as runner:
    for _ in range(int(warm_up)):
        runner.infer(feed)
    times = []
    for _ in range(int(iterations)):
        runner.infer(feed)
        times.append(runner.last_inference_time())
print(statistics.median(times))
"""


def polygraphy_median(file: Path, shape: str, folder: Path) -> float:
    """Median seconds of a run in Polygraphy's own runner."""
    name, _, extents = shape.partition("=")
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(file), name, extents, str(WARM_UP), str(ITERATIONS)],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(folder)},
    )  # fmt: skip
    return float(done.stdout.splitlines()[-1])


def polygraphy(file: Path, shape: str, folder: Path) -> tuple[float, float]:
    """Wall seconds of the command, and the mean of a run that it prints."""
    name, _, extents = shape.partition("=")
    command = [
        sys.executable, str(folder / "bin" / "polygraphy"), "run", str(file), "--onnxrt",
        "--sequential-runners", "--warm-up", str(WARM_UP), "--iterations", str(ITERATIONS),
        "--input-shapes", f"{name}:[{extents.replace('x', ',')}]",
    ]  # fmt: skip
    begin = now()
    done = subprocess.run(
        command, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )  # fmt: skip
    wall_s = now() - begin
    found = re.search(r"Average inference time: ([0-9.]+) ms", done.stdout + done.stderr)
    assert found is not None, done.stdout[-2000:]
    return wall_s, float(found[1]) * 1e-3


def xbench(file: Path, shape: str, iterations: int, folder: Path) -> tuple[float, float, int]:
    """Wall seconds of the command, the median of a run, and how many runs there were."""
    out = folder / "out.json"
    command = [
        sys.executable, "-m", "xbench.cli", "run", str(file), "--ep", "cpu", "--shape", shape,
        "--rounds", "1",
        "--iterations", str(iterations), "--no-profile", "--json", str(out),
    ]  # fmt: skip
    begin = now()
    subprocess.run(command, capture_output=True, check=True)
    wall_s = now() - begin
    (case,) = json.loads(out.read_bytes())["cases"]
    (samples,) = case["samples"]
    runs = 1 + samples["warmup"] + len(samples["values_s"]) * samples["per_sample"]
    return wall_s, case["latency"]["median_s"], runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", required=True, help="INPUT=1x3x224x224")
    parser.add_argument("--polygraphy", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XBENCH_STORE"] = str(folder / "store.sqlite")
        # Six bodies of warm-up at least, and the first run.
        iterations = WARM_UP + ITERATIONS - 7
        for _ in range(options.pairs):
            ours = xbench(options.file, options.shape, iterations, folder)
            theirs = polygraphy(options.file, options.shape, options.polygraphy)
            median = polygraphy_median(options.file, options.shape, options.polygraphy)
            rows.append((ours, (theirs[0], median)))
            print(
                f"xbench {ours[0]:.2f} s, median {ours[1] * 1e3:.2f} ms, {ours[2]} runs; "
                f"polygraphy {theirs[0]:.2f} s, mean {theirs[1] * 1e3:.2f} ms, "
                f"median {median * 1e3:.2f} ms, {WARM_UP + ITERATIONS} runs",
                flush=True,
            )
        helps = []
        for _ in range(3 * options.pairs):
            both = []
            for command in (
                ["-m", "xbench.cli", "--help"],
                [str(options.polygraphy / "bin" / "polygraphy"), "--help"],
            ):
                begin = now()
                subprocess.run(
                    [sys.executable, *command], capture_output=True, check=True,
                    env=os.environ | {"PYTHONPATH": str(options.polygraphy)},
                )  # fmt: skip
                both.append(now() - begin)
            helps.append(both[0] / both[1])
    walls = statistics.median(ours[0] / theirs[0] for ours, theirs in rows)
    medians = statistics.median(ours[1] / theirs[1] for ours, theirs in rows)
    print(f"wall time xbench / polygraphy: {walls:.3f}; median run: {medians:.3f}")
    print(f"--help: {statistics.median(helps):.2f}")
    return 0 if walls <= 1.0 and abs(medians - 1) <= 0.02 and statistics.median(helps) <= 0.7 else 1


if __name__ == "__main__":
    sys.exit(main())
