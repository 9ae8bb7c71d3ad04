"""Seconds that comparing and showing take with ten thousand cases, or with a thousand runs.

.venv/bin/python -m benchmarks.many_cases [--cases 10000] [--runs 1000]
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from xbench import compare, speed, stats, store
from xbench import gate as gating
from xbench.bench import timed
from xbench.reports import comparison, markdown, terminal
from xbench.reports import format as fmt
from xbench.result import SCHEMA, Agreement, CaseResult, Document, Run, Samples
from xbench.spec import Case

ENVIRONMENT = {"cpu": "synthetic", "cpus": "2", "os": "Linux", "numpy": "2.3"}
PROCESSES = 5
ENGINES = (("torch", None), ("tf", None), ("ort", "torch"), ("ort", "tf"))


def document(name: str, cases: int, seed: int, version: str, changed: bool = False) -> Document:
    """A run of synthetic cases: a sweep of ten models, both phases, four engines and many seeds.

    Where ``changed``, it swept other threads, so that no case has a partner of the same identity.
    """
    noise = random.Random(seed)
    results, agreements = [], []
    for index in range(cases):
        engine, source = ENGINES[index % 4]
        case = Case(
            model=f"model{index // 8 % 10}",
            size="small",
            phase="train" if index // 4 % 2 else "infer",
            engine=engine,
            source=source,
            device="cpu",
            threads=2 if changed else 1,
            batch=1 + index // 80 % 10,
            seed=index // 800,
            shape={"x": (1 + index // 80 % 10, 3, 32, 32)},
        )
        time_s = 1e-3 * (1 + index % 7)
        samples = [
            Samples(process=p, round=p, values_s=[time_s * noise.lognormvariate(0, 0.03)] * 3)
            for p in range(PROCESSES)
        ]
        key = case.key
        results.append(
            CaseResult(
                key=key,
                case=case,
                status="ok" if index % 50 else "failed",
                reason="" if index % 50 else "out of luck",
                samples=samples,
                latency=stats.latency(samples),
                peak_memory_bytes=10**7 + index,
                environment="e",
            )
        )
        agreements.append(
            Agreement(
                a=key,
                b=results[index - index % 4].key,
                what="outputs",
                tensors=[],
                evidence=None,
                tolerance=None,
                verdict="agree",
                sentence="",
            )
        )
    return Document(
        schema=SCHEMA,
        run=Run(id=name, started="2026-01-01T00:00:00+00:00", command=["run"], xbench="0"),
        environments={"e": ENVIRONMENT | {"torch": version}},
        cases=results,
        agreements=agreements,
    )


def shown(action: Callable[[io.StringIO, int], None]) -> str:
    """Seconds of printing at both widths that are looked after."""

    def at(width: int) -> str:
        return f"{timed(lambda: action(io.StringIO(), width)):.3f} s at {width} columns"

    return ", ".join(map(at, (80, 160)))


def command(*arguments: str) -> float:
    """Seconds of a whole command, from its start to its end."""
    words = [sys.executable, "-m", "xbench.cli", *arguments]
    return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000)
    arguments = parser.parse_args()
    stats.latency([Samples(process=0, round=0, values_s=[1.0])] * 3)
    speed.holm([0.5])
    a = document("a", arguments.cases, 1, "2.13")
    b = document("b", arguments.cases, 2, "2.14")
    other = document("c", arguments.cases, 3, "2.14", changed=True)
    print(f"{arguments.cases} cases, long tables from {fmt.LONG} rows")
    kept: list[compare.Comparison] = []
    print(f"compare: {timed(lambda: kept.append(compare.compare(a, b))):.3f} s")
    print(f"compare, no identity in common: {timed(lambda: compare.compare(a, other)):.3f} s")
    print(f"gate: {timed(lambda: gating.gate(kept[0], 'slower=5%,disagree,missing')):.3f} s")

    def print_comparison(file: io.StringIO, width: int) -> None:
        comparison.show(kept[0], terminal.make_console(file, width))

    print(f"comparison.show: {shown(print_comparison)}")
    print(f"markdown: {timed(lambda: markdown.comparison(kept[0])):.3f} s")
    print(f"terminal.show: {shown(lambda f, w: terminal.show(a, terminal.make_console(f, w)))}")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{name}.json") for name in "ab"]
        for file, run_of in zip(files, (a, b), strict=True):
            Path(file).write_bytes(store.encode(run_of))
        print(f"xbench show, whole command: {command('show', files[0]):.3f} s")
        print(f"xbench compare, whole command: {command('compare', *files):.3f} s")
        large = store.Store(Path(folder) / "large.sqlite")
        large.save(a)
        print(f"store, load the run: {timed(lambda: large.load('last')):.3f} s")
        many = store.Store(Path(folder) / "many.sqlite")
        small = document("x", 10, 4, "2.14")
        for index in range(arguments.runs):
            run = msgspec.structs.replace(small.run, id=f"run{index:06d}", started=f"{index:06d}")
            many.save(msgspec.structs.replace(small, run=run))
        print(f"store of {arguments.runs} runs, list: {timed(many.runs):.3f} s")
        print(f"store of {arguments.runs} runs, last: {timed(lambda: many.load('last')):.3f} s")
        by_id = timed(lambda: many.load("run000000"))
        print(f"store of {arguments.runs} runs, by id: {by_id:.3f} s")
        place = ("--store", str(many.path))
        for words in (("show",), ("show", "--list"), ("compare", "run000000", "last")):
            seconds = statistics.median(command(*words, *place) for _ in range(5))
            print(f"the same store, xbench {' '.join(words)}, whole command: {seconds:.3f} s")


if __name__ == "__main__":
    main()
