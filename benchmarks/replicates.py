"""Fresh processes: what one costs, and whether forked ones spread like spawned ones.

    .venv/bin/python -m benchmarks.replicates [--engines torch,tf,ort] [--rounds 12]

PredNet tiny, inference. Forked and spawned processes of every engine alternate in rounds of random
order. Overhead: wall time of a replicate less load, compile, first run and sampling. Spread:
standard deviation of the log of process medians, with the ratio of the variances and its 95 %
interval (F distribution), which holds 1 where the two spread alike.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from pathlib import Path

from scipy.special import fdtri

from benchmarks import arms
from xbench import registry
from xbench.inputs import Inputs
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.run import Session
from xbench.schedule import sampling_s


def session_of(engine: str, launcher: Launcher, rounds: int) -> Session:
    """A session of the one case, ready to be measured."""
    asked = arms.request(engine, budget_s=0.25 * rounds, rounds=rounds)
    inputs = Inputs(asked, Path(launcher.scratch.name), {})
    session = Session(asked, arms.arms(asked, [""], {}), inputs, launcher, Progress(), None)
    session.prepare_data()
    session.export()
    return session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="torch,tf,ort,torch-compile,tf-xla")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    order = random.Random(0)
    met = True
    with Launcher(fresh="fork") as forks, Launcher(fresh="spawn") as spawns:
        for engine in options.engines.split(","):
            sessions = {
                name: session_of(engine, launcher, options.rounds)
                for name, launcher in (("fork", forks), ("spawn", spawns))
                if name == "spawn" or registry.engine(engine).fork
            }
            for session in sessions.values():  # Starts the host, and fills a compile cache.
                (state,) = session.states.values()
                session.measure_once(state, 0)
                assert state.ok, state.reason
                state.measurements.clear()
                state.walls_s.clear()
            for round_ in range(options.rounds):
                names = list(sessions)
                order.shuffle(names)
                for name in names:
                    (state,) = sessions[name].states.values()
                    sessions[name].measure_once(state, round_)
            met = show(engine, sessions) and met
    return 0 if met else 1


def show(engine: str, sessions: dict[str, Session]) -> bool:
    """Print overhead and spread of an engine's processes; whether the default kind costs 0.25 s."""
    spreads: dict[str, float] = {}
    met = True
    for name, session in sessions.items():
        (state,) = session.states.values()
        assert state.ok, state.reason
        overheads = [
            wall - m.load_s - (m.compile_s or 0.0) - m.first_run_s - sampling_s(m)
            for wall, m in zip(state.walls_s, state.measurements, strict=True)
        ]
        logs = [math.log(statistics.median(m.samples.values_s)) for m in state.measurements]
        spreads[name] = statistics.stdev(logs)
        met = met and (name == "spawn" or statistics.median(overheads) <= 0.25)
        print(
            f"{engine} {name}: overhead {statistics.median(overheads):.3f} s a replicate, "
            f"median {math.exp(statistics.median(logs)) * 1e3:.3f} ms, "
            f"spread {spreads[name]:.4f} over {len(logs)} processes",
            flush=True,
        )
    if len(spreads) == 2:
        (state, *_) = (s for session in sessions.values() for s in session.states.values())
        n = len(state.measurements)
        ratio = (spreads["fork"] / spreads["spawn"]) ** 2
        low, high = (ratio / float(fdtri(n - 1, n - 1, q)) for q in (0.975, 0.025))
        print(f"{engine}: variance forked / spawned {ratio:.2f} ({low:.2f} to {high:.2f})")
    return met


if __name__ == "__main__":
    sys.exit(main())
