"""Seconds that `xbench --help` takes, and what it imports.

.venv/bin/python -m benchmarks.start_up [--runs 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from xbench.bench import timed

HEAVY = ("numpy", "scipy", "rich", "torch", "tensorflow", "onnx", "onnxruntime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    command = [sys.executable, "-m", "xbench.cli", "--help"]
    bare = [sys.executable, "-c", "pass"]

    def seconds(arguments: list[str]) -> float:
        return timed(lambda: subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True))

    pairs = [(seconds(command), seconds(bare)) for _ in range(runs)]
    ours, empty = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"xbench --help: {ours:.3f} s; python -c pass: {empty:.3f} s (medians of {runs})")
    code = (
        "import sys; from xbench import cli; sys.argv = ['xbench', '--help']\n"
        "try: cli.main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"heavy imports: {shown.stderr.strip()}")


if __name__ == "__main__":
    main()
