"""A closer look at what was rejected: which jobs it asks for, in which order, and when for none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from xbench import agree, tensors
from xbench.agree import Verdicts
from xbench.confirm import CONFIRM_S, EXPECTED_S, Confirmer, by_rounding, steps_of
from xbench.jobs import TENSORS, Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.references import References
from xbench.result import Agreement, Evidence, OperatorCheck, Operators
from xbench.spec import Case
from xbench.verdict import Confirmation, Side

EPS = float(np.finfo(np.float32).eps)
WRONG = 1.0 + 1000 * EPS
"""Far beyond rounding."""
DIGESTS = {"parameters": "p", "inputs": "i"}
NATIVES = ["torch", "tf"]
GRAPH = "/graphs/m.onnx"


def case(engine: str, phase: str = "infer", source: str | None = None, **fields: Any) -> Case:
    return Case(
        model="m", size="tiny", phase=phase, engine=engine, source=source, device="cpu", **fields
    )


EXPORT, TORCH = case("ort", source="torch"), case("torch")
FLOAT64 = agree.in_double(EXPORT)
TRUTH = agree.double(TORCH, "torch")


class Stage:
    """Answers jobs by a script, and writes down which were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, Case, dict[str, Any]]] = []
        self.answers: dict[str, Report] = {}
        self.sides: dict[str, Side] = {}
        self.pairs: list[agree.Pair] = []
        self.confirmations: dict[str, Confirmation] = {}
        self.planned: list[float] = []
        self.labels: list[str] = []
        # By what cases that share a file have in common.
        self.graphs: dict[tuple[str | None, str], str] = {("torch", ""): GRAPH}

    # -- what a closer look is given --

    def job(self, kind: str, case: Case, **fields: Any) -> Job:
        folder = self.folder / f"job-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return Job(kind=kind, case=case, folder=str(folder), **fields)

    def answer(self, name: str, job: Job) -> Report:
        fields = msgspec.structs.asdict(job)
        plain = msgspec.structs.asdict(Job(kind=job.kind, case=job.case, folder=job.folder))
        given = {k: v for k, v in fields.items() if v != plain[k]}
        self.asked.append((name, job.case, given))
        return self.answers.get(name, Report(status="failed", reason=f"no {name} in the script"))

    def run(self, job: Job) -> Report:
        return self.answer("under" if job.kind == "observe" else job.kind, job)

    # -- the script --

    def report(self, name: str, **fields: Any) -> None:
        """What the job called ``name`` comes to; ``tensors`` are left beside its report."""
        folder = self.folder / f"of-{name}"
        folder.mkdir(exist_ok=True)
        if "tensors" in fields:
            (folder / TENSORS).unlink(missing_ok=True)
            tensors.save(folder / TENSORS, fields.pop("tensors"))
        self.answers[name] = Report(folder=str(folder), digests=DIGESTS, **fields)

    def side(self, of: Case, **arrays: Any) -> None:
        """What a case computed: outputs by name, or tensors by their full names."""
        dtype = np.float64 if of.precision == "fp64" else np.float32
        named = {}
        for name, value in arrays.items():
            array = np.asarray(value)
            full = name if "/" in name else f"outputs/{name}"
            named[full] = array.astype(dtype) if array.dtype.kind == "f" else array
        self.sides[of.key] = Side(key=of.key, label=of.label, tensors=named, digests=DIGESTS)

    def compare(self, *asked: Case) -> None:
        self.pairs = agree.pairs(asked, NATIVES)

    def verdicts(self) -> Verdicts:
        return Verdicts(self.pairs, self.sides, self.confirmations)

    def verdict(self, of: Case) -> str:
        found = [item for item in self.verdicts().agreements() if item.a == of.key]
        assert found
        (verdict,) = {item.verdict for item in found}
        return verdict

    def confirmer(self) -> Confirmer:
        stage = self

        class Kept:
            def run(self, job: Job) -> Report:
                return stage.answer("reference", job)

        return Confirmer(
            cast(Launcher, self),
            cast(References, Kept()),
            self.job,
            lambda case: self.graphs.get((case.source, case.graph)),
            lambda case: self.sides.get(agree.double(case, case.engine).key),
        )

    def look(self) -> list[str]:
        """Look closer; the names of the jobs that were asked for."""
        stage = self

        class Told(Progress):
            def plan(self, weight: float) -> None:
                stage.planned.append(weight)

            @contextmanager
            def task(self, label: str, weight: float) -> Iterator[None]:
                stage.labels.append(label)
                yield

        self.confirmer().look_closer(self.verdicts, self.confirmations, Told())
        return [name for name, _, _ in self.asked]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """An export whose floats are far off, and everything else exact."""
    found = Stage(tmp_path)
    found.side(TRUTH, y=np.ones(4))
    found.side(TORCH, y=np.ones(4))
    found.side(EXPORT, y=np.full(4, WRONG))
    found.compare(EXPORT, TORCH)
    return found


def operators(score: float, *unchecked: str, optimizer: bool = False) -> Operators:
    worst = OperatorCheck(node="n", op="Conv", output="t", error_rms=score, limit_rms=1.0)
    return Operators(checked=1, worst=[worst], unchecked=list(unchecked), optimizer=optimizer)


def script(stage: Stage, *, graph: float = 1.0, score: float = 0.5) -> None:
    """The graph is so far off, and so are its operators."""
    stage.report("reference", tensors={"outputs/y": np.full(4, graph)})
    stage.report("choices")
    stage.report("segments", facts={"source": "/graphs/source.onnx"})
    stage.report("expected")
    stage.report("operators", operators=operators(score))


GRAPHS = ["reference", "choices"]
"""The jobs that look at a graph which chooses nothing."""
ALONE = ["segments", "expected", "operators"]
"""The jobs that check the operators of a graph."""


# -- when it looks ---------------------------------------------------------------------------------


def test_where_all_agree_it_asks_for_nothing(stage: Stage) -> None:
    stage.side(EXPORT, y=np.ones(4))
    assert stage.look() == []
    assert stage.confirmations == {}
    assert sum(stage.planned) == 0


@pytest.mark.parametrize("value", [np.ones(3), np.full(4, np.nan), np.ones(4, np.int64)])
def test_where_the_structure_differs_it_asks_for_nothing(stage: Stage, value: Any) -> None:
    stage.side(EXPORT, y=value)
    assert stage.verdict(EXPORT) == "disagree"
    assert stage.look() == []


def test_where_nothing_was_computed_it_asks_for_nothing(stage: Stage) -> None:
    stage.sides.clear()
    assert stage.look() == []


def test_every_case_that_is_rejected_is_looked_at_once(stage: Stage) -> None:
    """An export is held against two others, and its source is a third."""
    other = msgspec.structs.replace(EXPORT, options={"ort-opt": "0"})
    stage.side(other, y=np.full(4, WRONG))
    stage.compare(EXPORT, TORCH, other)
    script(stage)
    assert stage.look() == GRAPHS * 2 + ALONE * 2
    assert stage.confirmations.keys() == {EXPORT.key, other.key}
    assert stage.planned == [2 * CONFIRM_S * 2]
    graphs, checks = stage.labels[:2], stage.labels[2:]
    assert all(label.startswith("looking closer at the graph of ort(torch)") for label in graphs)
    assert all(label.startswith("checking the operators of ort(torch)") for label in checks)


# -- floats of a graph -----------------------------------------------------------------------------


def test_a_graph_is_evaluated_and_then_its_operators_one_by_one(stage: Stage) -> None:
    script(stage)
    assert stage.look() == [*GRAPHS, *ALONE]
    (_, of, fields), chosen, *alone = stage.asked
    assert of == FLOAT64
    assert fields == {"graph": GRAPH, "parameter_set": "probe"}
    assert chosen == ("choices", EXPORT, {"graph": GRAPH})
    segments = stage.answers["segments"].folder
    assert alone == [
        ("segments", EXPORT, {"graph": GRAPH}),
        (
            "expected",
            FLOAT64,
            {"graph": "/graphs/source.onnx", "against": segments, "deadline_s": EXPECTED_S},
        ),
        ("operators", EXPORT, {"graph": GRAPH, "against": segments}),
    ]
    found = stage.confirmations[EXPORT.key]
    assert found.graph is not None
    assert (found.graph.key, found.graph.tensors["outputs/y"].tolist()) == (FLOAT64.key, [1.0] * 4)
    assert found.operators == operators(0.5)
    assert (found.choices, found.missing) == ({}, "")
    assert stage.verdict(EXPORT) == "agree"


def test_an_operator_at_fault(stage: Stage) -> None:
    script(stage, score=3.0)
    assert stage.look() == [*GRAPHS, *ALONE]
    assert stage.verdict(EXPORT) == "disagree"


def test_a_graph_at_fault_excuses_its_operators(stage: Stage) -> None:
    script(stage, graph=WRONG)
    assert stage.look() == GRAPHS
    assert stage.confirmations[EXPORT.key].operators is None
    assert stage.verdict(EXPORT) == "disagree"


def test_an_inconclusive_case_is_looked_at_too(stage: Stage) -> None:
    stage.side(EXPORT, y=np.full(4, 1.0 + 20 * EPS))
    assert stage.verdict(EXPORT) == "inconclusive"
    script(stage)
    assert stage.look() == [*GRAPHS, *ALONE]
    assert stage.verdict(EXPORT) == "agree"


def test_a_user_file_is_looked_at_as_an_export_is(stage: Stage) -> None:
    file = case("ort", source="file", graph="ab12", options={"ort-opt": "0"})
    stage.graphs = {("file", "ab12"): GRAPH}
    stage.side(file, y=np.full(4, WRONG))
    stage.side(agree.in_double(file), y=np.ones(4))
    stage.compare(file)
    script(stage)
    assert stage.look() == [*GRAPHS, *ALONE]
    assert [of for _, of, _ in stage.asked] == [
        agree.in_double(file), file, file, agree.in_double(file), file,
    ]  # fmt: skip
    assert stage.verdict(file) == "agree"


# -- choices -------------------------------------------------------------------------------------


@pytest.fixture
def chooser(stage: Stage) -> Stage:
    """An export that also chooses an index, another one than the reference; its floats agree."""
    stage.side(TRUTH, y=np.ones(4), i=np.array([2]))
    stage.side(TORCH, y=np.ones(4), i=np.array([2]))
    stage.side(EXPORT, y=np.ones(4), i=np.array([3]))
    script_choices(stage)
    return stage


def script_choices(stage: Stage, **facts: str) -> None:
    stage.report("reference", tensors={"outputs/y": np.ones(4), "outputs/i": np.array([2])})
    stage.report("choices", facts={"choices": "1"})
    stage.report(
        "under", tensors={"outputs/y": np.ones(4), "outputs/i": np.array([3])}, facts=facts
    )


def test_an_index_that_differs_asks_for_the_choices_and_what_they_give(chooser: Stage) -> None:
    """The definition that it is held against is no graph: its own stands in for that."""
    chooser.answers["under"] = msgspec.structs.replace(
        chooser.answers["under"], facts={"ties": "1"}
    )
    assert chooser.look() == ["reference", "choices", "under"]
    assert chooser.asked[1:] == [
        ("choices", EXPORT, {"graph": GRAPH}),
        (
            "under",
            FLOAT64,
            {
                "graph": GRAPH,
                "parameter_set": "probe",
                "against": chooser.answers["choices"].folder,
            },
        ),
    ]
    found = chooser.confirmations[EXPORT.key]
    assert found.choices.keys() == {TRUTH.key}
    choices = found.choices[TRUTH.key]
    assert (choices.side.key, choices.side.tensors["outputs/i"].tolist()) == (FLOAT64.key, [3])
    assert (choices.ties, choices.faults, choices.stands_in) == (1, "", True)
    assert found.missing == ""
    assert chooser.verdict(EXPORT) == "agree"


def test_what_stands_in_must_be_the_function_of_the_reference(chooser: Stage) -> None:
    """A graph with another constant gives what it gives, whatever it is made to choose."""
    chooser.report("reference", tensors={"outputs/y": np.ones(4), "outputs/i": np.array([3])})
    assert chooser.look() == ["reference", "choices", "under"]
    assert chooser.verdict(EXPORT) == "disagree"


FILE, BASE = (
    case("ort", source="file", graph=digest, options={"ort-opt": "0"})
    for digest in ("ab12", "ba5e")
)
"""A user's file, and the one that it is held against."""


@pytest.fixture
def across(stage: Stage) -> Stage:
    """A file that chooses an index otherwise than its own float64 and that of another file."""
    for of, chosen in ((FILE, 3), (BASE, 2)):
        stage.side(of, y=np.ones(4), i=np.array([chosen]))
        stage.side(agree.in_double(of), y=np.ones(4), i=np.array([2]))
        stage.graphs["file", of.graph] = f"/{of.graph}.onnx"
    stage.pairs = agree.pairs([FILE, BASE], NATIVES, agree.Files(against="ba5e"))
    script_choices(stage, ties="1")
    return stage


def test_every_reference_is_evaluated_under_the_choices_by_its_own_graph(across: Stage) -> None:
    assert across.verdict(FILE) == "disagree"
    assert across.look() == ["reference", "choices", "under", "under"]
    own, base = agree.in_double(FILE), agree.in_double(BASE)
    folder = across.answers["choices"].folder
    assert across.asked[1:] == [
        ("choices", FILE, {"graph": "/ab12.onnx"}),
        *(
            ("under", of, {"graph": path, "parameter_set": "probe", "against": folder})
            for of, path in ((own, "/ab12.onnx"), (base, "/ba5e.onnx"))
        ),
    ]
    found = across.confirmations[FILE.key]
    assert found.choices.keys() == {own.key, base.key}
    assert {key: item.side.key for key, item in found.choices.items()} == {
        own.key: own.key, base.key: base.key,
    }  # fmt: skip
    assert not any(item.stands_in for item in found.choices.values())
    assert across.verdict(FILE) == "agree"


def test_another_graph_may_tie_with_the_reference_that_it_is_held_against(across: Stage) -> None:
    """What the reference's own graph gives under the choices is the truth of that reference."""
    across.report("reference", tensors={"outputs/y": np.ones(4), "outputs/i": np.array([3])})
    across.look()
    assert across.verdict(FILE) == "agree"


def test_a_reference_that_cannot_follow_the_choices_leaves_the_others(across: Stage) -> None:
    answer = across.answer

    def limited(name: str, job: Job) -> Report:
        found = answer(name, job)
        fails = name == "under" and job.graph == "/ba5e.onnx"
        return Report(status="failed", reason="no such node") if fails else found

    across.answer = limited  # type: ignore[method-assign]
    across.look()
    found = across.confirmations[FILE.key]
    base = agree.in_double(BASE)
    assert found.choices.keys() == {agree.in_double(FILE).key}
    assert found.missing == f"{base.title} under its choices: no such node"
    judged = [item for item in across.verdicts().agreements() if item.a == FILE.key]
    assert {item.b: item.verdict for item in judged} == {
        agree.in_double(FILE).key: "agree", base.key: "disagree",
    }  # fmt: skip


def test_a_choice_at_fault_is_kept(chooser: Stage) -> None:
    chooser.answers["under"] = msgspec.structs.replace(
        chooser.answers["under"], facts={"ties": "0", "faults": "ArgMax (top)"}
    )
    assert chooser.look() == ["reference", "choices", "under"], "operators say nothing of it"
    assert chooser.confirmations[EXPORT.key].choices[TRUTH.key].faults == "ArgMax (top)"
    assert chooser.verdict(EXPORT) == "disagree"


def test_a_graph_without_choices_is_not_evaluated_again(chooser: Stage) -> None:
    chooser.answers["choices"] = msgspec.structs.replace(chooser.answers["choices"], facts={})
    assert chooser.look() == GRAPHS
    assert chooser.confirmations[EXPORT.key].choices == {}
    assert chooser.verdict(EXPORT) == "disagree"


def test_floats_alone_ask_for_choices_too(stage: Stage) -> None:
    """They may follow from an index that is no output: what was gathered at a tie."""
    script(stage)
    stage.report("choices", facts={"choices": "1"})
    stage.report("under", tensors={"outputs/y": np.full(4, WRONG)}, facts={"ties": "1"})
    assert stage.look() == [*GRAPHS, "under"], "the choice explains it, operators need not"
    assert stage.verdict(EXPORT) == "agree"


@pytest.mark.parametrize("under", [1.0, WRONG])
def test_floats_that_are_off_beside_an_index_at_a_tie(chooser: Stage, under: float) -> None:
    """They are explained by the choice, or they are looked at operator by operator."""
    chooser.side(EXPORT, y=np.full(4, WRONG), i=np.array([3]))
    chooser.report("under", tensors={"outputs/y": np.full(4, under), "outputs/i": np.array([3])})
    chooser.report("segments", facts={"source": "/graphs/source.onnx"})
    chooser.report("expected")
    chooser.report("operators", operators=operators(0.5))
    # The worst tensor decides what is asked for: an exact one that differs.
    explained = ["reference", "choices", "under"]
    assert chooser.look() == explained + ([] if under == WRONG else ALONE)


# -- what could not be found out -------------------------------------------------------------------


def test_a_graph_that_float64_cannot_evaluate(stage: Stage) -> None:
    stage.answers["reference"] = Report(status="unsupported", reason="Foo is unknown")
    found = stage.confirmer().graphs(EXPORT, [])
    assert found == Confirmation(missing="its graph has no float64 evaluation: Foo is unknown")
    assert [name for name, _, _ in stage.asked] == ["reference"], "it has no choices either"


@pytest.mark.parametrize(
    ("fails", "words", "asked"),
    [
        ("choices", "its choices could not be seen: no room", GRAPHS),
        ("under", f"{FLOAT64.title} under its choices: no room", [*GRAPHS, "under"]),
    ],
)
def test_choices_that_could_not_be_seen_or_followed(
    chooser: Stage, fails: str, words: str, asked: list[str]
) -> None:
    chooser.answers[fails] = Report(status="failed", reason="no room")
    assert chooser.look() == asked
    found = chooser.confirmations[EXPORT.key]
    assert (found.missing, found.choices) == (words, {})
    assert found.graph is not None
    assert chooser.verdict(EXPORT) == "disagree"
    assert any(words in item.sentence for item in chooser.verdicts().agreements())


@pytest.mark.parametrize("fails", ALONE)
def test_operators_that_could_not_be_checked(stage: Stage, fails: str) -> None:
    script(stage)
    stage.answers[fails] = Report(status="failed", reason="no room")
    assert stage.look() == [*GRAPHS, *ALONE[: ALONE.index(fails) + 1]]
    found = stage.confirmations[EXPORT.key]
    assert found.missing == "its operators could not be checked one by one: no room"
    assert found.operators is None
    assert found.graph is not None
    assert stage.verdict(EXPORT) == "disagree"
    assert any(found.missing in item.sentence for item in stage.verdicts().agreements())


# -- native engines --------------------------------------------------------------------------------


def test_a_native_engine_has_a_definition_and_operators_of_its_own(stage: Stage) -> None:
    stage.side(EXPORT, y=np.ones(4))
    stage.side(TORCH, y=np.full(4, WRONG))
    script(stage)
    assert stage.look() == ["operators"]
    assert stage.asked == [("operators", TORCH, {"parameter_set": "probe", "at": (0,)})]
    found = stage.confirmations[TORCH.key]
    assert found.graph == stage.sides[TRUTH.key], "by its own engine, from the same definition"
    assert found.operators == operators(0.5)
    assert stage.verdict(TORCH) == "agree"


def test_another_definition_excuses_the_operators_of_its_engine(stage: Stage) -> None:
    tf = case("tf")
    stage.side(tf, y=np.full(4, WRONG))
    stage.side(agree.double(tf, "tf"), y=np.full(4, WRONG))
    stage.compare(tf)
    assert stage.look() == []
    assert stage.confirmations[tf.key].graph == stage.sides[agree.double(tf, "tf").key]


def test_a_source_that_nobody_asked_for_is_looked_at(stage: Stage) -> None:
    """Otherwise it would lend its exports nothing, though its operators are right."""
    stage.compare(EXPORT)
    stage.side(TORCH, y=np.full(4, WRONG))
    script(stage)
    assert stage.look() == [*GRAPHS, *ALONE, "operators"]
    assert stage.confirmations.keys() == {EXPORT.key, TORCH.key}
    assert stage.verdict(EXPORT) == "agree"


def trained(stage: Stage, values: Mapping[str, float]) -> Case:
    """A case that trains, of which some tensors are off."""
    train = case("torch", "train")
    names = (
        "loss/0", "loss/1", "gradients/0/w", "gradients/1/w", "trajectory/loss/0", "trajectory/w",
    )  # fmt: skip
    exact = {name: np.ones(4) for name in names}
    off = {name: np.full(4, value) for name, value in values.items()}
    stage.side(agree.double(train, "torch"), **exact)
    stage.side(train, **(exact | off))
    stage.compare(train)
    stage.report("operators", operators=operators(0.5, optimizer=True))
    return train


@pytest.mark.parametrize(
    ("off", "steps"),
    [
        (["loss/0"], (0,)),
        (["loss/1"], (1,)),
        (["gradients/1/w"], (1,)),
        (["gradients/0/w", "loss/1"], (0, 1)),
        (["trajectory/w"], (0,)),
        (["trajectory/w", "gradients/1/w"], (0, 1)),
    ],
)
def test_of_training_the_steps_that_were_rejected_are_looked_at(
    stage: Stage, off: Sequence[str], steps: tuple[int, ...]
) -> None:
    train = trained(stage, dict.fromkeys(off, WRONG))
    assert stage.look() == ["operators"]
    assert stage.asked == [("operators", train, {"parameter_set": "probe", "at": steps})]
    assert stage.verdict(train) == "agree"


def test_operators_without_the_optimizer_leave_a_trajectory_open(stage: Stage) -> None:
    train = trained(stage, {"trajectory/w": WRONG, "loss/0": WRONG})
    stage.report("operators", operators=operators(0.5))
    stage.look()
    verdicts = {item.what: item.verdict for item in stage.verdicts().agreements()}
    assert verdicts == {"loss": "agree", "gradients": "agree", "trajectory": "inconclusive"}
    assert stage.verdicts().rejected().keys() == {train.key}


@pytest.mark.parametrize(
    ("tensor", "steps"),
    [
        ("loss/3", {3}),
        ("gradients/12/layer/w", {12}),
        ("trajectory/loss/4", {0}),
        ("trajectory/w", {0}),
        ("outputs/y", {0}),
        ("outputs/y@2", {0}),
    ],
)
def test_the_step_of_an_agreement(tensor: str, steps: set[int]) -> None:
    assert steps_of(agreement(tensor)) == steps
    assert steps_of(msgspec.structs.replace(agreement(tensor), evidence=None)) == {0}


def agreement(tensor: str = "outputs/y", by: str = "x", tolerance: float | None = 1.0) -> Agreement:
    return Agreement(
        a="a", b="b", what="w", tensors=[], evidence=Evidence(tensor=tensor, decided_by=by),
        tolerance=tolerance, verdict="disagree", sentence="",
    )  # fmt: skip


def test_what_may_be_rounding() -> None:
    assert by_rounding(agreement())
    assert not by_rounding(agreement(by="its graph, evaluated in float64"))
    assert not by_rounding(agreement(tolerance=None))
    assert not by_rounding(msgspec.structs.replace(agreement(), evidence=None))
