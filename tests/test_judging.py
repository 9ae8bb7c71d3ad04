"""A run's observations: their order, where they begin, on which inputs; and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from tests.jobs import Array
from xbench import agree, registry, tensors, worker
from xbench.files import OnnxFile
from xbench.inputs import Inputs
from xbench.jobs import REPORT, STATES, TENSORS, Job, Report
from xbench.judging import PERTURBATIONS, REFERENCE_S, Judging
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import Agreement, OperatorCheck, Operators
from xbench.spec import Case, Signature, TensorSpec
from xbench.state import State

EPS = float(np.finfo(np.float32).eps)
WRONG = 1.0 + 1000 * EPS
"""Far beyond rounding."""
NATIVES = ["torch", "tf"]
GRAPH = "/graphs/prednet.onnx"
NAMES = {
    "infer": ("outputs/y",),
    "train": ("loss/0", "gradients/0/w", "trajectory/w"),
}


def case(engine: str, phase: str = "infer", source: str | None = None, **fields: Any) -> Case:
    spec = registry.model("prednet")
    known: dict[str, Any] = {
        "model": "prednet", "size": "tiny", "device": "cpu", "batch": spec.batch["tiny"],
        "loss": spec.losses[0] if phase == "train" else "",
    }  # fmt: skip
    return Case(engine=engine, phase=phase, source=source, **(known | fields))


def file(name: str, *first: int | str) -> OnnxFile:
    """A file of one input and one output for each entry of ``first``: its first axis."""
    digest = tensors.digest_text(name.encode())
    signature = Signature(
        inputs=tuple(TensorSpec(f"x{k}", (rows, 3)) for k, rows in enumerate(first)),
        outputs=tuple(TensorSpec(f"y{k}", (rows, 3)) for k, rows in enumerate(first)),
    )
    return OnnxFile(path=f"/{name}.onnx", name=name, digest=digest, signature=signature)


def of_file(of: OnnxFile, **fields: Any) -> Case:
    """A case of a file, on seven rows where it does not say how many."""
    shape = {
        spec.name: tuple(7 if isinstance(n, str) else n for n in spec.shape)
        for spec in of.signature.inputs
    }
    known: dict[str, Any] = {"options": {"ort-opt": "0"}, "shape": shape}
    return case("ort", source="file", model=of.name, size="", batch=1, graph=of.digest[:12],
                **(known | fields))  # fmt: skip


class Stopping(Progress):
    """Presses Ctrl-C when the task after ``tasks`` others begins."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    @contextmanager
    def task(self, label: str, weight: float) -> Iterator[None]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        yield


class Desk:
    """A run whose jobs are answered by a script; those of the fake engine are really done."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder
        self.asked: list[Job] = []
        self.values: dict[str, float] = {}
        self.fails: Callable[[Job], Report | None] = lambda _: None
        self.extra: dict[str, State] = {}
        self.count = 0

    def judging(
        self,
        *cases: Case,
        natives: Sequence[str] = NATIVES,
        files: Sequence[OnnxFile] = (),
        progress: Progress | None = None,
        **request: Any,
    ) -> Judging:
        common: dict[str, Any] = {"steps": 2, "cache": str(self.scratch / "cache")}
        asked = Request(**(common | request))
        self.inputs = Inputs(asked, self.scratch, {item.path: item for item in files})
        for item in cases:
            self.inputs.prepare(item)
        self.states = [State(item) for item in cases]
        return Judging(
            asked,
            natives,
            self.inputs,
            cast(Launcher, self),
            progress or Progress(),
            job=self.job,
            graph=lambda of: {None: None, "file": "/f.onnx"}.get(of.source, GRAPH),
        )

    def observe(self, *cases: Case, **fields: Any) -> Judging:
        found = self.judging(*cases, **fields)
        found.observe(self.states, self.extra)
        return found

    # -- a launcher --

    def job(self, kind: str, case: Case, **more: Any) -> Job:
        self.count += 1
        folder = self.scratch / f"job-{self.count}"
        folder.mkdir()
        known = {"inputs": str(self.inputs.path(case)), "signature": self.inputs.signature(case)}
        return Job(kind=kind, case=case, folder=str(folder), **(known | more))

    def run(self, job: Job) -> Report:
        self.asked.append(job)
        if (failed := self.fails(job)) is not None:
            return failed
        report = worker.do(job) if job.case.engine == "fake" else self.answer(job)
        (Path(job.folder) / REPORT).write_bytes(msgspec.json.encode(report))
        return msgspec.structs.replace(report, folder=job.folder)

    def answer(self, job: Job) -> Report:
        """Ones, or what ``values`` says of the label; a second run has nothing else to tell."""
        if job.kind == "operators":
            worst = OperatorCheck(node="n", op="Op", output="t", error_rms=0.5, limit_rms=1.0)
            return Report(operators=Operators(checked=1, worst=[worst], optimizer=True))
        if job.kind == "segments":
            return Report(facts={"source": "/source.onnx"})
        folder = Path(job.folder)
        dtype = np.float64 if job.case.precision == "fp64" else np.float32
        value: Array = np.full(4, self.values.get(job.case.label, 1.0), dtype)
        if not job.repeats:
            tensors.save(folder / TENSORS, dict.fromkeys(NAMES[job.case.phase], value))
        if job.makes_states:
            tensors.save_batches(folder / STATES, [{"w": np.ones(2)}])
        assert job.inputs is not None
        digests = {"parameters": "p", "inputs": tensors.digest_file(Path(job.inputs))}
        return Report(digests=digests, bits={"outputs/y": "b"})

    # -- what was asked --

    def told(self) -> list[str]:
        """The jobs by case and by what they are: ``again``, ``repeats``, or another kind."""
        return [
            " ".join(filter(None, [
                job.case.label,
                "" if job.kind == "observe" else job.kind,
                "again" if job.again else "",
                "repeats" if job.repeats else "",
            ]))
            for job in self.asked
        ]  # fmt: skip

    def of(self, case: Case) -> list[Job]:
        return [job for job in self.asked if job.case == case]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def verdicts(found: Sequence[Agreement]) -> dict[tuple[str, str, str], str]:
    return {(item.a, item.b, item.what): item.verdict for item in found}


TRUTH, DEFINITION = "torch cpu fp64", "tf cpu fp64"


# -- the order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_float64_goes_first_and_that_of_the_reference_before_others(desk: Desk, order: int) -> None:
    asked = [case("tf"), case("ort", source="tf"), case("torch")][::order]
    desk.observe(*asked)
    told = desk.told()
    assert told[:2] == [TRUTH, DEFINITION]
    assert told[2:] == [
        f"{item.label} {what}" for item in asked for what in ("again", "repeats")
    ]  # fmt: skip
    assert {state.case.label for state in desk.extra.values()} == {TRUTH, DEFINITION}


def test_witnesses_are_observed_as_what_was_asked_for(desk: Desk) -> None:
    judging = desk.observe(case("ort", source="tf"))
    assert {state.case.label for state in desk.extra.values()} == {
        TRUTH, DEFINITION, "tf cpu", "torch cpu",
    }  # fmt: skip
    assert judging.states.keys() == {*desk.extra, case("ort", source="tf").key}
    assert judging.asked == {case("ort", source="tf").key}
    assert all(state.observed is not None for state in judging.states.values())


def test_the_second_process_is_told_what_the_first_found(desk: Desk) -> None:
    desk.observe(case("torch"))
    first, second = desk.of(case("torch"))
    assert (first.again, first.repeats) == (True, {})
    assert (second.again, second.repeats) == (False, {"outputs/y": "b"})
    assert first.perturbations == PERTURBATIONS
    assert second.perturbations == 0, "the spread is known"


def test_only_the_reference_engine_in_single_is_perturbed(desk: Desk) -> None:
    desk.observe(case("torch"), case("tf"), case("ort", source="torch"))
    perturbed = {job.case.label for job in desk.asked if job.perturbations}
    assert perturbed == {"torch cpu"}


def test_taps_and_losses_are_asked_of_those_that_have_them(desk: Desk) -> None:
    desk.observe(case("torch"), case("ort", source="torch"), case("torch", "train"))
    taps = {(job.case.label, job.case.phase) for job in desk.asked if job.taps}
    assert taps == {("torch cpu", "infer"), (TRUTH, "infer")}
    follow = [job for job in desk.asked if job.follow_loss]
    assert [(job.case.label, job.case.phase, job.again) for job in follow] == [
        ("torch cpu", "train", True)
    ]


def test_every_job_begins_from_the_probe_parameters_on_the_inputs_of_its_case(desk: Desk) -> None:
    desk.observe(case("torch"), case("ort", source="torch"))
    for job in desk.asked:
        assert job.parameter_set == "probe"
        assert job.inputs == str(desk.inputs.path(job.case))
        assert job.graph == (GRAPH if job.case.engine == "ort" else None)


# -- training --------------------------------------------------------------------------------------


def test_every_engine_begins_each_step_where_float64_came_to(desk: Desk) -> None:
    train = [case(engine, "train") for engine in ("tf", "torch")]
    judging = desk.observe(*train)
    (truth,) = desk.of(agree.double(train[0], "torch"))
    assert (truth.makes_states, truth.states) == (True, None)
    rest = [job for job in desk.asked if job is not truth]
    assert {job.case.label for job in rest} == {DEFINITION, "tf cpu", "torch cpu"}
    states = judging.training[truth.case.key]
    assert Path(states).is_file()
    assert {(job.makes_states, job.states) for job in rest} == {(False, states)}


def test_states_are_handed_on_from_the_cache_too(desk: Desk) -> None:
    train = case("torch", "train")
    desk.observe(train)
    desk.asked.clear()
    desk.observe(train)
    assert desk.told() == ["torch cpu again", "torch cpu repeats"], "float64 is kept"
    for job in desk.asked:
        assert job.states is not None
        assert (desk.scratch / "cache") in Path(job.states).parents
        assert Path(job.states).is_file()


def test_inference_hands_no_states_on(desk: Desk) -> None:
    judging = desk.observe(case("torch"))
    assert judging.training == {}
    assert {(job.makes_states, job.states) for job in desk.asked} == {(False, None)}


def test_other_training_begins_from_its_own_states(desk: Desk) -> None:
    one, other = case("torch", "train"), case("torch", "train", seed=1)
    judging = desk.observe(one, other)
    assert len(set(judging.training.values())) == 2
    for item in (one, other):
        states = judging.training[agree.double(item, "torch").key]
        assert {job.states for job in desk.of(item)} == {states}


def test_without_float64_training_begins_from_nowhere_and_nothing_is_compared(desk: Desk) -> None:
    train = case("torch", "train")
    failed = Report(status="crashed", reason="planted")
    desk.fails = lambda job: failed if job.case.precision == "fp64" else None
    judging = desk.observe(train)
    assert {job.states for job in desk.of(train)} == {None}
    found = judging.agreements()
    assert {item.verdict for item in found} == {"inconclusive"}
    assert all(item.sentence.endswith(": planted") for item in found)


def test_a_closer_look_begins_where_the_case_began(desk: Desk) -> None:
    train = case("torch", "train")
    desk.values["torch cpu"] = WRONG
    judging = desk.observe(train)
    desk.asked.clear()
    judging.confirm()
    (job,) = desk.asked
    assert (job.kind, job.case) == ("operators", train)
    assert job.states == judging.training[agree.double(train, "torch").key]
    assert job.inputs == str(desk.inputs.compared(train))
    assert {item.verdict for item in judging.agreements()} == {"agree"}


def test_the_losses_of_a_case_that_nothing_can_judge_are_shown_all_the_same(desk: Desk) -> None:
    infer, train = case("ort", source="torch"), case("torch", "train")
    judging = desk.observe(infer, train, natives=[])
    assert {job.case.phase for job in desk.asked} == {"train"}
    assert judging.agreements() == []


# -- the real engine of the tests ------------------------------------------------------------------


def test_the_fake_engine_from_start_to_end(desk: Desk) -> None:
    infer, train = case("fake"), case("fake", "train")
    judging = desk.observe(infer, train, natives=["fake"])
    assert desk.told()[:2] == ["fake cpu fp64"] * 2
    judging.confirm()
    found = judging.agreements()
    assert [item.what for item in found] == ["outputs", "loss", "gradients", "trajectory"]
    assert {item.verdict for item in found} == {"agree"}
    observed = judging.states[train.key]
    assert observed.observed is not None
    assert observed.repeat is not None
    assert observed.repeat.tensors() == {}, "a second run computes the same"
    assert len(observed.loss) == 2
    assert judging.notes == []


# -- float64 that cannot do all rows ---------------------------------------------------------------

SLOW = Report(status="timeout", reason="float64 was not done after 120 s")


def rows(job: Job) -> int:
    assert job.inputs is not None
    return max(len(a) for batch in tensors.load_batches(Path(job.inputs)) for a in batch.values())


def too_much(report: Report) -> Callable[[Job], Report | None]:
    """Float64 comes to ``report`` where it has more than one row."""
    return lambda job: report if job.case.precision == "fp64" and rows(job) > 1 else None


@pytest.mark.parametrize(
    "report", [SLOW, Report(status="out_of_memory", reason="it needs 200 GiB")]
)
def test_a_file_that_is_too_much_for_float64_is_compared_on_one_row(
    desk: Desk, report: Report
) -> None:
    free = file("free", "n")
    desk.fails = too_much(report)
    judging = desk.observe(of_file(free), files=[free])
    truth = desk.of(agree.in_double(of_file(free)))
    assert [(rows(job), job.deadline_s) for job in truth] == [(7, REFERENCE_S), (1, REFERENCE_S)]
    # What is compared with it is computed on that row too.
    assert [rows(job) for job in desk.of(of_file(free))] == [1, 1]
    (note,) = judging.notes
    assert note.startswith("free: compared on the first of 7 batch rows: ")
    assert {item.verdict for item in judging.agreements()} == {"agree"}


def test_a_closer_look_is_at_the_row_that_was_compared(desk: Desk) -> None:
    free = file("free", "n")
    desk.fails = too_much(SLOW)
    desk.values[of_file(free).label] = WRONG
    judging = desk.observe(of_file(free), files=[free])
    assert {item.verdict for item in judging.agreements()} == {"disagree"}
    desk.asked.clear()
    judging.confirm()
    assert desk.asked
    assert {rows(job) for job in desk.asked} == {1}


def test_a_file_that_float64_can_do_is_compared_on_all_rows(desk: Desk) -> None:
    free = file("free", "n")
    judging = desk.observe(of_file(free), files=[free])
    assert {rows(job) for job in desk.asked} == {7}
    assert judging.notes == []


@pytest.mark.parametrize("first", [(7,), ("n", "m"), ("n", 7)])
def test_without_a_batch_axis_that_float64_was_not_done_is_said(
    desk: Desk, first: tuple[int | str, ...]
) -> None:
    fixed = file("fixed", *first)
    desk.fails = too_much(SLOW)
    judging = desk.observe(of_file(fixed), files=[fixed])
    assert len(desk.of(agree.in_double(of_file(fixed)))) == 1
    assert {rows(job) for job in desk.asked} == {7}
    assert judging.notes == []
    (found,) = judging.agreements()
    assert found.verdict == "inconclusive"
    assert found.sentence.endswith(f": {SLOW.reason}")


def test_a_file_that_is_too_much_with_one_row_too(desk: Desk) -> None:
    free = file("free", "n")
    desk.fails = lambda job: SLOW if job.case.precision == "fp64" else None
    judging = desk.observe(of_file(free), files=[free])
    assert len(desk.of(agree.in_double(of_file(free)))) == 2
    (found,) = judging.agreements()
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize("status", ["failed", "crashed", "unsupported", "interrupted"])
def test_a_reference_that_fails_otherwise_is_not_tried_with_fewer_rows(
    desk: Desk, status: str
) -> None:
    free = file("free", "n")
    desk.fails = too_much(Report(status=status, reason="planted"))
    judging = desk.observe(of_file(free), files=[free])
    assert len(desk.of(agree.in_double(of_file(free)))) == 1
    assert judging.notes == []


def test_a_model_has_all_the_time_and_all_its_rows(desk: Desk) -> None:
    truth = agree.double(case("torch"), "torch")
    desk.fails = lambda job: SLOW if job.case == truth else None
    judging = desk.observe(case("torch"))
    (job,) = desk.of(truth)
    assert job.deadline_s is None
    assert judging.notes == []


# -- what failed -----------------------------------------------------------------------------------


def failing(of: Case, *, repeat: bool = False) -> Callable[[Job], Report | None]:
    report = Report(status="crashed", reason="planted")
    return lambda job: report if job.case == of and bool(job.repeats) == repeat else None


def test_an_asked_case_that_failed_has_no_rows(desk: Desk) -> None:
    """Its status says so; a verdict that nothing was compared would say it again."""
    torch, tf = case("torch"), case("tf")
    desk.fails = failing(tf)
    judging = desk.observe(torch, tf)
    assert [state.status for state in desk.states] == ["ok", "crashed"]
    assert len(desk.of(tf)) == 1, "there is nothing that a second process could repeat"
    truth, definition = (agree.double(torch, engine).key for engine in NATIVES)
    assert verdicts(judging.agreements()) == {
        (definition, truth, "outputs"): "agree",
        (torch.key, truth, "outputs"): "agree",
    }


def test_who_is_held_against_a_case_that_failed_says_so(desk: Desk) -> None:
    torch, export = case("torch"), case("ort", source="torch")
    desk.fails = failing(torch)
    judging = desk.observe(export)
    assert desk.extra[torch.key].status == "crashed"
    found = judging.agreements()
    assert len(found) == 2
    assert {item.a for item in found} == {export.key}
    assert {item.sentence for item in found} == {
        "torch cpu could not be computed, so nothing was compared: planted"
    }


def test_a_second_process_that_failed_ends_the_case_and_keeps_its_rows(desk: Desk) -> None:
    torch = case("torch")
    desk.fails = failing(torch, repeat=True)
    judging = desk.observe(torch)
    (state,) = desk.states
    assert (state.status, state.reason, state.repeat) == ("crashed", "planted", None)
    assert [item.a for item in judging.agreements()] == [torch.key]


def test_with_fixed_tolerances_nobody_looks_closer(desk: Desk) -> None:
    desk.values["torch cpu"] = WRONG
    judging = desk.observe(case("torch"), atol={"": 1e-6})
    (found,) = judging.agreements()
    assert (found.verdict, "fixed tolerance" in found.sentence) == ("disagree", True)
    desk.asked.clear()
    judging.confirm()
    assert desk.asked == []


def test_the_definition_of_a_native_case_is_what_its_own_engine_found(desk: Desk) -> None:
    judging = desk.observe(case("tf"))
    for engine, own in (("tf", "tf"), ("tf-xla", "tf"), ("torch", "torch")):
        found = judging.definition(case(engine))
        assert found is not None
        assert found.key == agree.double(case(engine), own).key
    assert judging.definition(case("tf", seed=1)) is None


def test_random_nodes_of_a_file_go_with_its_case(desk: Desk) -> None:
    noisy = msgspec.structs.replace(file("noisy", "n"), facts={"random": "RandomNormal 'r'"})
    judging = desk.observe(of_file(noisy), files=[noisy])
    assert judging.states[of_file(noisy).key].random == "RandomNormal 'r'"


# -- interrupted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "pairs"),
    [
        (0, set()),
        # Float64 of torch, then of TensorFlow: the definitions can be compared.
        (1, set()),
        (2, {(DEFINITION, TRUTH)}),
        (3, {(DEFINITION, TRUTH), ("torch cpu", TRUTH)}),
        (
            4,
            {(DEFINITION, TRUTH), ("torch cpu", TRUTH), ("tf cpu", TRUTH), ("tf cpu", "torch cpu")},
        ),
    ],
)
def test_ctrl_c_leaves_verdicts_on_what_was_observed(
    desk: Desk, tasks: int, pairs: set[tuple[str, str]]
) -> None:
    judging = desk.judging(case("torch"), case("tf"), progress=Stopping(tasks))
    if tasks < 4:
        with pytest.raises(KeyboardInterrupt):
            judging.observe(desk.states, desk.extra)
    else:
        judging.observe(desk.states, desk.extra)
    labels = {key: state.case.label for key, state in judging.states.items()}
    found = judging.agreements()
    compared = {(labels[item.a], labels[item.b]) for item in found if item.verdict == "agree"}
    assert compared == pairs
    others = [item for item in found if item.verdict != "agree"]
    assert {item.verdict for item in others} <= {"inconclusive"}
    # Of what was asked for and not computed there is no row.
    done = {job.case.key for job in desk.asked if job.repeats}
    assert {item.a for item in found if labels[item.a].endswith("cpu")} == done


def test_before_anything_is_observed_there_are_no_verdicts(desk: Desk) -> None:
    assert desk.judging(case("torch")).agreements() == []


def test_ctrl_c_in_a_closer_look_leaves_the_verdict_as_it_was(desk: Desk) -> None:
    desk.values["torch cpu"] = WRONG
    judging = desk.judging(case("torch"), progress=Stopping(2))
    judging.observe(desk.states, desk.extra)
    with pytest.raises(KeyboardInterrupt):
        judging.confirm()
    assert [item.verdict for item in judging.agreements()] == ["disagree"]


def test_jobs_that_end_as_interrupted_are_failures_as_others(desk: Desk) -> None:
    """A launcher that was stopped answers so; nothing that it says is taken for an observation."""
    stopped = Report(status="interrupted", reason="stopped while it ran")
    desk.fails = lambda job: stopped if job.case == case("torch") else None
    judging = desk.observe(case("torch"))
    assert judging.agreements() == []
    assert desk.states[0].status == "interrupted"
