"""The command line as a user meets it: real commands, real signals, all that can be wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.command import (
    BRIEF,
    QUICK,
    TINY,
    Done,
    alive,
    finish,
    here,
    line,
    run,
    scratch,
    started,
    wait_until,
)
from xbench import __version__, cli, store
from xbench.result import CaseResult, Document

ENDLESS = (*TINY, "--rounds", "500", "--budget", "5")


def refused(done: Done, code: int, *words: str) -> None:
    """One line on stderr that has the words, nothing on stdout, no traceback."""
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("xbench: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "doctor", "export", "run", "show"])
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"xbench.cli {command}" in done.out or f"xbench {command}" in done.out
    assert "--json" in done.out


def test_no_command_and_help_show_the_same() -> None:
    done = run()
    assert done == run("--help")
    assert "Commands:" in done.out


def test_version() -> None:
    assert run("--version") == Done(0, f"xbench {__version__}\n", "")


def test_the_console_script_is_the_same_command() -> None:
    script = Path(line()[0]).with_name("xbench")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"xbench {__version__}\n"


def test_list() -> None:
    models = run("list", "--json", "-").json()
    assert "prednet" in {model["name"] for model in models}
    assert {"title", "paper", "parameters", "batch", "losses", "data"} <= set(models[0])
    assert "prednet" in run("list").out


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "predent"), ("unknown model 'predent'", "did you mean 'prednet'?")),
        (("run", "prednet", "--size", "tinny"), ("'tinny'", "did you mean 'tiny'?")),
        (("run", "--engine", "torhc"), ("unknown engine", "did you mean 'torch'?")),
        (("run", "--ep", "cdua"), ("unknown EP", "did you mean 'cuda'?")),
        (("run", "--phase", "trian"), ("unknown phase", "did you mean 'train'?")),
        (("run", "--json", "/nonexistent/x.json"), ("/nonexistent", "does not exist")),
        (("run", "--source", "toch"), ("unknown source", "did you mean 'torch'?")),
        (
            ("run", "prednet", "--loss", "mse-nxt"),
            ("unknown loss of prednet", "did you mean 'mse-next'?"),
        ),
        (("run", "--allow", "unavailible"), ("unknown status", "did you mean 'unavailable'?")),
        (("run", "vgg", "--draws", "fedd"), ("unknown draws", "did you mean 'fed'?")),
        (("run", "prednet", "--draws", "fed"), ("--draws", "models that draw", "leave it out")),
        (("run", "vgg", "--draws", "fed", "--phase", "infer"), ("--draws", "leave it out")),
        (("run", "vgg", "--draws", "fed", "--no-speed"), ("--draws", "leave it out")),
        (("run", "--data", "."), ("--data", "models that are named", "XBENCH_DATA")),
        (("run", "--fresh", "frok"), ("unknown --fresh", "did you mean 'fork'?")),
        (("run", "--rounds", "0"), ("--rounds must be above zero",)),
        (("run", "--rounds", "-2"), ("--rounds must be above zero", "-2")),
        (("run", "--rounds", "few"), ("--rounds", "integer")),
        (("run", "--budget", "0"), ("--budget must be above zero",)),
        (("run", "--budget", "nan"), ("--budget must be above zero",)),
        (("run", "--budget", "inf"), ("--budget must be", "finite")),
        (("run", "--time-limit", "-1"), ("--time-limit must be above zero",)),
        (("run", "--steps", "0"), ("--steps must be above zero",)),
        (("run", "--threads", "-1"), ("--threads must be above zero",)),
        (("run", "--batch", "0"), ("--batch must be above zero",)),
        (("run", "--seed", "-1"), ("--seed",)),
        (("run", "--engine", "ort", "--phase", "train"), ("nothing to run", "ort")),
        (("run", "--bogus"), ("--bogus",)),
        (("export",), ("Missing argument 'model'",)),
        (("export", "predent"), ("did you mean 'prednet'?",)),
        (("export", "prednet", "--from", "tc"), ("unknown source",)),
        (("export", "prednet", "--parameters", "probee"), ("did you mean 'probe'?",)),
        (("shwo",), ("shwo",)),
    ],
    ids=" ".join,
)
def test_what_is_not_known_is_refused(
    arguments: tuple[str, ...], words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    refused(here(capfd, *arguments), 2, *words)
    assert not Path(os.environ["XBENCH_STORE"]).exists()


def test_data_that_cannot_be_used_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("no picture")
    video = tmp_path / "cut.avi"
    video.write_bytes(b"RIFF" + (10**6).to_bytes(4, "little") + b"AVI LIST")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "frame.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    for path, word in (
        (tmp_path / "missing", "no such file or folder"),
        (empty, "expected pictures"),
        (other, "expected pictures"),
        (video, "truncated"),
        (damaged, "frame.png: not a picture"),
    ):
        refused(here(capfd, *QUICK, "--data", str(path)), 1, str(path), word)
    assert alive() == []


# -- what is written, and where --------------------------------------------------------------------


def test_json_on_stdout_is_all_there_is_and_is_what_the_store_keeps() -> None:
    done = run(*QUICK, "--json", "-", fake={"fail": "noise"})
    assert done.code == 0, done.err
    document = done.json()
    assert {
        "schema", "run", "environments", "cases", "agreements", "exit_status", "exit_reasons",
    } <= set(document)  # fmt: skip
    identity = {
        "model", "size", "phase", "engine", "source", "device", "env", "threads", "precision",
        "batch", "shape", "draws", "options", "seed",
    }  # fmt: skip
    for case in document["cases"]:
        assert {
            "status", "reason", "samples", "latency", "first_run_s", "load_s", "compile_s",
            "peak_memory_bytes", "placement", "loss", "profile", "digests",
        } <= set(case)  # fmt: skip
        assert identity <= set(case["case"])
        assert case["environment"] in document["environments"] or not case["asked"]
    measured = [case for case in document["cases"] if case["asked"]]
    assert len(measured) == 2
    for case in measured:
        assert {"process", "round", "values_s"} <= set(case["samples"][0])
        assert {
            "median_s", "ci_low_s", "ci_high_s", "p90_s", "p99_s", "n", "processes",
        } == set(case["latency"])  # fmt: skip
        assert {"ep", "nodes", "time_share"} <= set(case["placement"][0])
        assert {
            "wall_s", "steps", "unattributed_s", "truncated", "correction", "ops",
        } == set(case["profile"])  # fmt: skip
        assert {"op", "class", "stage", "count", "time_s"} <= set(case["profile"]["ops"][0])
    for agreement in document["agreements"]:
        assert {"what", "tensors", "evidence", "tolerance", "verdict", "sentence"} <= set(agreement)
    assert run("show", "--json", "-").out == done.out
    assert "agree" in run("show", document["run"]["id"]).out
    assert document["run"]["id"] in run("show", "--list").out
    assert [item["id"] for item in run("show", "--list", "--json", "-").json()] == [
        document["run"]["id"]
    ]


def test_tables_say_why_a_case_did_not_run_and_allow_accepts_it(tmp_path: Path) -> None:
    arguments = (*QUICK, "--rounds", "1", "--ep", "cuda,cpu")
    done = run(*arguments)
    assert done.code == 3, done.err
    assert "the fake runner has no CUDA device" in done.out
    assert done.out.splitlines()[-1].startswith("exit 3: unavailable: infer fake cuda, train fake")
    file = tmp_path / "it.json"
    allowed = run(*arguments, "--allow", "unavailable", "--json", str(file))
    assert allowed.code == 0
    read = store.decode(file.read_bytes(), "it")
    assert {(r.case.device, r.status) for r in read.cases if r.asked} == {
        ("cpu", "ok"),
        ("cuda", "unavailable"),
    }
    # A file stands for a run.
    assert run("show", str(file)).out == allowed.out


def test_what_cannot_be_kept_is_said_and_the_results_are_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "store.sqlite"
    done = run(*BRIEF, "--store", str(below), "--json", str(tmp_path / "it.json"))
    assert done.code == 1, done.err
    assert str(below) in done.err.splitlines()[-1]
    assert done.out.splitlines()[-1] == "exit 0: all ran and agreed"
    document = store.decode((tmp_path / "it.json").read_bytes(), "it")
    for json, path, word in (
        ("/dev/full", tmp_path / "1", "cannot write /dev/full: No space left on device"),
        (str(tmp_path), tmp_path / "2", "Is a directory"),
        (None, below, str(below)),
        (None, Path("/dev/full"), "/dev/full"),
    ):
        assert cli.deliver(document, json, path) == 1
        out, err = capfd.readouterr()
        assert word in err
        assert err.count("\n") == 1
        assert out == done.out


def test_a_full_disk_under_stdout_is_an_error_but_the_run_is_kept() -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (("list",), ("list", "--json", "-"), BRIEF):
            done = subprocess.run(
                line(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            assert "cannot write to stdout: No space left" in done.stderr.splitlines()[-1]
    assert run("show").out.splitlines()[-1] == "exit 0: all ran and agreed"


@pytest.mark.parametrize("json", [(), ("--json", "-")], ids=["tables", "json"])
def test_a_reader_that_leaves_is_no_error_and_the_run_is_kept(json: tuple[str, ...]) -> None:
    # A pipe without a reader: what `head -1` leaves, but every time.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        line(*BRIEF, *json), stdout=writer, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert run("show").code == 0


def test_a_reader_that_leaves_early() -> None:
    run(*BRIEF)
    piped = " ".join(line("show")) + " | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", piped], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("prednet")


def test_show_of_what_is_not_there_or_damaged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(here(capfd, "show"), 1, "no runs are stored yet")
    refused(here(capfd, "show", "--list"), 1, "no runs are stored yet")
    refused(here(capfd, "show", str(tmp_path / "no.json")), 1, "no.json", "No such file")
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"schema": 1, "run": ')
    refused(here(capfd, "show", str(damaged)), 1, "damaged.json")
    other = tmp_path / "other.json"
    other.write_text('{"schema": 99}')
    refused(here(capfd, "show", str(other)), 1, "other.json", "schema 99")
    (tmp_path / "text.sqlite").write_text("this is no database, however long it may be" * 99)
    refused(here(capfd, "show", "--store", str(tmp_path / "text.sqlite")), 1, "text.sqlite")
    assert run(*BRIEF).code == 0
    refused(here(capfd, "show", "1999"), 1, "no stored run is called '1999'")


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "below")
    # Python goes on to the next usual place for temporary files.
    assert run(*BRIEF, TMPDIR=below).code == 0
    # Without an export nothing is cached; with one, the cache is looked at before any framework.
    assert run(*BRIEF, XBENCH_CACHE=below).code == 0
    done = run("export", "prednet", "--size", "tiny", XBENCH_CACHE=below)
    refused(done, 1, below, "set XBENCH_CACHE")
    assert alive() == []


# -- signals ---------------------------------------------------------------------------------------


def heard(process: subprocess.Popen[str], *words: str) -> None:
    """Read what the command says on stderr until all of ``words`` have been said."""
    assert process.stderr is not None
    missing = set(words)
    for text in process.stderr:
        missing = {word for word in missing if word not in text}
        if not missing:
            return
    raise AssertionError(f"never said: {missing}")


def kept() -> Document:
    """The stored run: written and read as `show` does."""
    return store.Store(store.default_path()).load("last")


def asked(document: Document) -> list[CaseResult]:
    return [result for result in document.cases if result.asked]


@pytest.mark.parametrize(
    ("number", "fresh"),
    [(signal.SIGINT, "fork"), (signal.SIGINT, "spawn"), (signal.SIGTERM, "fork")],
)
def test_a_signal_in_the_rounds_keeps_what_was_measured(
    number: signal.Signals, fresh: str, tmp_path: Path
) -> None:
    file = tmp_path / "it.json"
    with started(*ENDLESS, "--fresh", fresh, "--json", str(file)) as process:
        heard(process, "round 1/500, case 1/2", "round 1/500, case 2/2", "round 2/500")
        process.send_signal(number)
        done = finish(process)
        assert alive() == []
        assert list(scratch().iterdir()) == []
    assert done.code == 130
    assert "Traceback" not in done.err
    assert done.out.splitlines()[-1].startswith("exit 130: ")
    document = kept()
    assert store.decode(file.read_bytes(), "it") == document
    assert document.run.interrupted
    assert [result.status for result in asked(document)] == ["ok", "ok"]
    assert all(1 <= len(result.samples) < 500 for result in asked(document))


@pytest.mark.parametrize("stage", ["probe", "load", "observe"])
def test_ctrl_c_while_a_job_hangs(stage: str) -> None:
    with started(*QUICK, fake={"fail": "hang", "stage": stage}) as process:
        wait_until(lambda: alive("sleep"))
        process.send_signal(signal.SIGINT)
        done = finish(process)
        assert alive() == []
    assert done.code == 130
    assert "Traceback" not in done.err
    status = {"probe": "interrupted", "load": "interrupted", "observe": "ok"}[stage]
    assert [result.status for result in asked(kept())] == [status, status]


def test_a_second_ctrl_c_leaves_nothing_either() -> None:
    for delay_s in (0.0, 0.02, 0.2):
        with started(*BRIEF, fake={"fail": "hang"}) as process:
            wait_until(lambda: alive("sleep"))
            process.send_signal(signal.SIGINT)
            threading.Event().wait(delay_s)
            process.send_signal(signal.SIGINT)
            done = finish(process)
            wait_until(lambda: not alive())
        # Python itself lets go of the signal while it shuts down.
        assert done.code in (130, -signal.SIGINT)
        assert list(scratch().iterdir()) == []


def test_a_command_that_is_killed_takes_its_processes_along() -> None:
    with started(*QUICK, fake={"fail": "hang"}) as process:
        wait_until(lambda: alive("sleep"))
        assert len(alive()) == 4, "command, host, job and what the job started"
        process.kill()
        process.wait()
        wait_until(lambda: not alive())
    with started(*QUICK, "--fresh", "spawn", fake={"duration_s": "3600"}) as process:
        heard(process, "trying")
        wait_until(lambda: len(alive()) == 2)
        process.kill()
        process.wait()
        wait_until(lambda: not alive())


def test_a_worker_that_is_killed_costs_its_own_case_alone() -> None:
    with started(*QUICK, "--json", "-", fake={"phase": "train", "fail": "hang"}) as process:
        wait_until(lambda: alive("sleep"))
        os.kill(alive("sleep")[0].ppid(), signal.SIGKILL)
        done = finish(process)
        assert alive() == []
    assert done.code == 3
    status = {c["case"]["phase"]: c["status"] for c in done.json()["cases"] if c["asked"]}
    assert status == {"infer": "ok", "train": "crashed"}
    assert done.json()["exit_reasons"] == ["crashed: train fake cpu"]
