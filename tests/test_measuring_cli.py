"""Measuring commands as users type them: sweeps, plans, soaks, comparisons, and what is refused."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.command import BRIEF, QUICK, TINY, Done, here, run

INFER = (*TINY, "--phase", "infer", "--no-profile")


def document(*arguments: str, fake: dict[str, str] | None = None) -> dict[str, Any]:
    """The document of a run that must end well."""
    done = run(*arguments, "--json", "-", fake=fake)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def asked(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [case for case in found["cases"] if case["asked"]]


def refused(done: Done, code: int, *words: str) -> None:
    """One message that says all of ``words``, no traceback, nothing on stdout."""
    assert done.code == code, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    messages = [line for line in done.err.splitlines() if line.startswith("xbench: ")]
    assert len(messages) == 1, done.err
    for word in words:
        assert word in messages[0]


# -- sweeps ------------------------------------------------------------------------------------


def test_a_sweep_measures_every_combination_once() -> None:
    found = document(*INFER, "--rounds", "1", "--batch", "1,3", "--threads", "1,2")
    seen = [(c["case"]["batch"], c["case"]["threads"]) for c in asked(found)]
    assert seen == [(1, 1), (1, 2), (3, 1), (3, 2)]
    for case in asked(found):
        items = case["case"]["batch"] / case["latency"]["median_s"]
        assert case["items_per_s"] == pytest.approx(items)
    # The first of each batch is what the others of it are held against.
    keys = {(c["case"]["batch"], c["case"]["threads"]): c["key"] for c in asked(found)}
    to = {
        (c["case"]["batch"], c["case"]["threads"]): c["ratio"] and c["ratio"]["to"]
        for c in asked(found)
    }
    assert to == {(1, 1): None, (1, 2): keys[1, 1], (3, 1): None, (3, 2): keys[3, 1]}


def test_losses_stand_by_batch() -> None:
    found = document(*TINY, "--phase", "train", "--no-profile", "--rounds", "1", "--batch", "1,2")
    assert [(table["model"], table["batch"]) for table in found["losses"]] == [
        ("prednet", 1),
        ("prednet", 2),
    ]


def test_a_device_shows_its_own_time_and_that_with_copies() -> None:
    fake = {"duration_s": "0.004", "device_s": "0.001", "copy_s": "0.003"}
    (case,) = asked(document(*INFER, "--rounds", "2", "--budget", "50ms", fake=fake))
    assert case["device_median_s"] == 0.001
    assert case["end_to_end_s"] >= 0.007, "a sleep lasts no shorter than it was asked to"
    assert case["latency"]["median_s"] >= 0.004
    values, device = case["samples"][0]["values_s"], case["samples"][0]["device_s"]
    assert len(values) == len(device) > 0


def test_compiling_cold_and_warm_are_apart() -> None:
    fake = {"compile_s": "0.15"}
    (case,) = asked(document(*INFER, "--rounds", "3", "--budget", "50ms", fake=fake))
    assert case["compile_cold_s"] >= 0.15
    assert case["compile_s"] < 0.15, "the cache of this command was warm by then"
    again = asked(document(*INFER, "--rounds", "1", "--budget", "50ms", fake=fake))
    assert again[0]["compile_cold_s"] >= 0.15, "and it ends with the command"


def test_a_precision_that_is_not_the_asked_one_is_said() -> None:
    fake = {"effective": "tf32"}
    done = run(*INFER, "--rounds", "2", "--budget", "20ms", fake=fake, COLUMNS="160")
    assert "computes" in done.out
    assert re.search(r"fake cpu .* tf32 ", done.out)


def test_engines_that_are_optional_run_only_when_named() -> None:
    from xbench import plan, registry

    optional = {name for name, engine in registry.engines().items() if engine.optional}
    assert optional >= {"torch-compile", "tf-xla"}
    assert not optional & set(plan.engine_names(None))
    measured = {name for name in optional if not registry.engine(name).reference}
    assert measured <= set(plan.engine_names("all"))
    assert registry.reference() not in plan.engine_names("all")


# -- budget and precision ----------------------------------------------------------------------


def test_a_narrow_interval_ends_a_case_early() -> None:
    # Sleeping that long, however late it ends, is about the same in all processes.
    fake = {"duration_s": "0.03"}
    wide = asked(document(*INFER, "--budget", "2s", "--ci-width", "99%", fake=fake))
    assert len(wide[0]["samples"]) == 6, "the least that an interval is believed from"


def test_a_budget_is_kept() -> None:
    fake = {"duration_s": "0.02"}
    (case,) = asked(document(*INFER, "--budget", "200ms", fake=fake))
    spent = sum(condition["wall_s"] for condition in case["conditions"])
    bodies = sum(s["warmup"] + len(s["values_s"]) for s in case["samples"])
    assert spent >= 0.02 * bodies
    assert bodies <= 0.2 / 0.02 * 1.2, "sleeping lasts no shorter, so no more fit into the budget"


def test_a_budget_too_small_for_one_sample_fails_the_case() -> None:
    done = run(*INFER, "--budget", "5ms", fake={"duration_s": "0.05"})
    assert done.code == 3
    words = " ".join(done.out.split())
    assert "the budget of 0.005 s is too small for one sample: a run takes 0.05" in words
    assert "--budget" in words.split("too small")[1]


def test_iterations_are_exact() -> None:
    (case,) = asked(document(*INFER, "--rounds", "2", "--iterations", "7"))
    assert [len(samples["values_s"]) for samples in case["samples"]] == [7, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rounds", "0"), "--rounds must be above zero, not 0"),
        (("--rounds", "-3"), "--rounds must be above zero, not -3"),
        (("--budget", "0"), "--budget must be above zero, not 0"),
        (("--budget", "-1s"), "--budget must be above zero"),
        (("--budget", "soon"), "--budget is a duration like 30s"),
        (("--budget", "inf"), "--budget must be finite"),
        (("--ci-width", "0%"), "--ci-width is a share like 1%"),
        (("--ci-width", "150%"), "--ci-width is a share like 1%"),
        (("--iterations", "0"), "--iterations must be above zero"),
        (("--soak", "0s"), "--soak must be above zero"),
        (("--batch", "1,x"), "--batch takes whole numbers"),
        (("--batch", "0"), "--batch must be above zero"),
        (("--threads", ","), "--threads takes whole numbers"),
        (("--precision", "int8"), "unknown precision 'int8'"),
        (("--ort-opt", "3"), "unknown optimisation level '3'"),
        (("--session-option", "x"), "--session-option takes KEY=VALUE"),
        (("--provider-option", "use_tf32=0"), "--provider-option takes EP:KEY=VALUE"),
        (("--provider-option", "tpu:a=1"), "unknown EP of --provider-option 'tpu'"),
        (("--shape", "x=1x3"), "--shape and --inputs are for ONNX files"),
        (("--inputs", "a.npz"), "--shape and --inputs are for ONNX files"),
    ],
)
def test_a_bad_option_is_one_message(
    options: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(here(capfd, *INFER, *options), 2, message)


# -- soak --------------------------------------------------------------------------------------


def test_a_soak_shows_a_leak() -> None:
    # 64 KiB a body of a millisecond or more: some 50 MiB over the soak.
    fake = {"duration_s": "0.001", "leak_bytes": str(2**16)}
    done = run(*INFER, "--soak", "1500ms", "--json", "-", fake=fake)
    (case,) = asked(done.json())
    windows = case["soak"]["windows"]
    assert 20 <= len(windows) <= 60
    assert [w["at_s"] for w in windows] == sorted(w["at_s"] for w in windows)
    trends = {trend["what"]: trend for trend in case["soak"]["trends"]}
    assert trends["memory"]["verdict"] == "rising"
    assert trends["memory"]["change"] > 0.1
    assert len(case["samples"]) == 1


# -- plans -------------------------------------------------------------------------------------


def test_a_plan_replays_a_run(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    first = document(*INFER, "--rounds", "2", "--batch", "2", "--save-plan", str(plan))
    again = document("run", "--plan", str(plan))
    assert [c["key"] for c in asked(again)] == [c["key"] for c in asked(first)]
    assert again["run"]["request"] == first["run"]["request"]
    assert [c["digests"] for c in asked(again)] == [c["digests"] for c in asked(first)]


def test_a_plan_is_not_mixed_with_options(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    document(*INFER, "--rounds", "1", "--save-plan", str(plan))
    refused(here(capfd, "run", "--plan", str(plan), "--rounds", "3"), 2, "leave --rounds out")
    refused(here(capfd, "run", "prednet", "--plan", str(plan)), 2, "--plan replays a run as it was")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is not a plan of xbench"),
        (b'{"schema": 9}', "is a plan of schema 9; this xbench reads 1"),
        (b'{"schema": 1}', "is not a plan of xbench"),
    ],
)
def test_what_is_no_plan_is_refused(
    tmp_path: Path, data: bytes, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(data)
    refused(here(capfd, "run", "--plan", str(plan)), 1, str(plan), words)
    refused(here(capfd, "run", "--plan", str(plan) + "x"), 1, "cannot read the plan")


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("absent.onnx", None, "absent.onnx"),
        ("empty.onnx", b"", "empty.onnx"),
        ("text.onnx", b"not a model at all, just words\n" * 9, "text.onnx"),
    ],
)
def test_what_is_no_model_is_refused(
    tmp_path: Path, name: str, data: bytes | None, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    refused(here(capfd, "run", str(path)), 1, words)


def test_a_name_that_is_neither_model_nor_file_names_the_models(
    capfd: pytest.CaptureFixture[str],
) -> None:
    refused(here(capfd, "run", "predne"), 2, "unknown model 'predne': did you mean 'prednet'?")


# -- compare -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of one case with times that are made up: as they are, and a third longer."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XBENCH_STORE", str(folder / "store.sqlite"))
        measured = document(*INFER, "--rounds", "6", "--budget", "100ms")
    found = {}
    for name, factor in (("plain", 1.0), ("slow", 4 / 3)):
        for process, samples in enumerate(measured["cases"][0]["samples"]):
            samples["values_s"] = [factor * (0.003 + 1e-6 * process)] * 9
        found[name] = folder / f"{name}.json"
        found[name].write_text(json.dumps(measured))
    return found


def test_a_slow_down_between_stored_runs_is_found(
    results: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(capfd, "compare", str(results["plain"]), str(results["slow"]), "--json", "-")
    assert done.code == 0, done.err
    (row,) = done.json()["rows"]
    assert row["verdict"] == "slower"
    assert row["ratio"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("gate", "code"), [("slower=5%", 5), ("slower=5%,disagree", 5), ("disagree", 0)]
)
def test_a_gate_decides_the_exit_status(
    results: dict[str, Path], gate: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(capfd, "compare", str(results["plain"]), str(results["slow"]), "--fail-on", gate)
    assert done.code == code, done.err
    assert ("gate failed: slower" in done.err) == (code == 5)
    assert "1 case compared: 1 slower" in done.out


def test_measured_again_the_two_are_one_schedule(results: dict[str, Path]) -> None:
    done = run("compare", str(results["plain"]), str(results["slow"]), "--rerun", "--json", "-")
    assert done.code == 0, done.err
    (row,) = done.json()["rows"]
    assert row["method"] == "interleaved"
    # The slow-down was written into the file: measured again there is none of that size.
    assert row["ratio"] != pytest.approx(4 / 3, rel=1e-6)
    assert len(re.findall(r"^round ", done.err, re.M)) == 12, "six rounds of two sides"
    stored = run("show", "--list", "--json", "-").json()
    assert len(stored) == 1, "what was measured again is kept"


def test_a_comparison_in_markdown(
    results: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(capfd, "compare", str(results["plain"]), str(results["slow"]), "--md", "-")
    assert done.code == 0, done.err
    assert re.search(r"^\| prednet tiny, infer \| fake cpu \| ok \|.*slower", done.out, re.M)


def test_runs_with_no_case_in_common_are_not_compared(
    results: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    done = run(*TINY, "--phase", "train", "--rounds", "1", "--no-profile", "--json", str(other))
    assert done.code == 0, done.err
    refused(run("compare", str(results["plain"]), str(other)), 2, "no case in common")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.replace(b'"schema": 1', b'"schema": 99'), "has schema 99"),
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda _: b"", "damaged"),
    ],
)
def test_a_result_that_cannot_be_read_is_named(
    results: dict[str, Path],
    tmp_path: Path,
    change: Any,
    words: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(change(results["plain"].read_bytes()))
    refused(here(capfd, "compare", str(results["plain"]), str(bad)), 1, str(bad), words)


def test_two_documents_do_not_share_stdout(
    results: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(
        capfd, "compare", str(results["plain"]), str(results["slow"]), "--json", "-", "--md", "-"
    )
    refused(done, 2, "cannot both be stdout")


@pytest.mark.parametrize("gate", ["faster", "slower=x", "slower=-5%", ""])
def test_a_gate_that_is_none_is_refused(
    results: dict[str, Path], gate: str, capfd: pytest.CaptureFixture[str]
) -> None:
    done = here(capfd, "compare", str(results["plain"]), str(results["slow"]), "--fail-on", gate)
    refused(done, 2, "--fail-on")


def test_a_run_that_does_not_say_what_it_was_asked_for_cannot_be_repeated(
    results: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = json.loads(results["plain"].read_bytes())
    old["run"]["request"] = {"threads": "two"}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    done = here(capfd, "compare", str(path), str(results["slow"]), "--rerun")
    refused(done, 2, "does not say what it was asked for")


# -- one store, several commands ---------------------------------------------------------------


def test_commands_at_once_on_one_store_lose_nothing() -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run(*BRIEF, "--no-profile"), range(3)))
    assert [one.code for one in done] == [0, 0, 0], [one.err for one in done]
    stored = run("show", "--list", "--json", "-").json()
    assert len({one["id"] for one in stored}) == 3


def test_quick_runs_keep_their_request() -> None:
    found = document(*QUICK)
    assert found["run"]["request"]["rounds"] == 2
    assert found["run"]["request"]["models"] == ["prednet"]
