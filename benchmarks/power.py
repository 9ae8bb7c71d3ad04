"""Power: how often is a planted slow-down found, at the default budget of a cheap case?

    .venv/bin/python -m benchmarks.power [--trials 40] [--percent 5 3]

A trial measures three arms in one run: a fixed body, and the same body with so many percent more
work (the same matrices, more passes over them: real work, not a pause). Trials share nothing.
"""

from __future__ import annotations

import argparse
import collections
import math
import statistics
import sys

from benchmarks import arms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--percent", type=float, nargs="+", default=[5.0, 3.0])
    options = parser.parse_args()
    base = 100
    work = {percent: round(base * (1 + percent / 100)) for percent in options.percent}
    verdicts: dict[float, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    ratios = collections.defaultdict(list)
    rounds = []
    for trial in range(options.trials):
        asked = arms.request("noise", threads=options.threads)
        names = ["base", *(f"plus{percent:g}" for percent in work)]
        planted = {f"plus{percent:g}": {"passes": str(n)} for percent, n in work.items()}
        cases = arms.arms(asked, names, {"base": {"passes": str(base)}} | planted)
        found = arms.by_arm(
            arms.measure(asked, cases, {case.key: cases[0].key for case in cases[1:]})
        )
        for percent in work:
            ratio = found[f"plus{percent:g}"].ratio
            assert ratio is not None
            verdicts[percent][ratio.verdict] += 1
            ratios[percent].append(math.log(ratio.ratio))
            rounds.append(ratio.rounds)
        print(f"trial {trial + 1}: {dict(verdicts)}", flush=True)
    for percent, n in work.items():
        slower = verdicts[percent]["slower"]
        print(
            f"planted {n / base - 1:.1%}: slower in {slower} of {options.trials} "
            f"({slower / options.trials:.0%}), {dict(verdicts[percent])}; median ratio "
            f"{math.exp(statistics.median(ratios[percent])):.3f}, "
            f"{statistics.median(rounds):g} rounds"
        )
    return 0 if verdicts[5.0]["slower"] >= 0.95 * options.trials else 1


if __name__ == "__main__":
    sys.exit(main())
