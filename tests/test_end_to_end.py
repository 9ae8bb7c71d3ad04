"""The main job with the real frameworks: one run of every model at tiny, from all sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from xbench import draws, exits, plan, registry, run
from xbench.exports import Exports
from xbench.launch import Launcher
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import CaseResult, Document

ENGINES = ("torch", "tf", "ort")
MODELS = registry.model_names()
LABELS = {
    ("infer", "torch cpu"),
    ("infer", "tf cpu"),
    ("infer", "ort(torch) cpu"),
    ("infer", "ort(tf) cpu"),
    ("train", "torch cpu"),
    ("train", "tf cpu"),
}


@pytest.fixture(scope="module")
def document(export_cache: Path) -> Document:
    request = Request(
        models=tuple(MODELS),
        size="tiny",
        engines=ENGINES,
        sources=("torch", "tf"),
        devices=("cpu", "cuda"),
        threads=(2,),
        rounds=2,
        iterations=3,
        steps=3,
        cache=str(export_cache),
    )
    assert plan.natives(request) == ["torch", "tf"]
    return run.execute(request, Progress(), ["test"])


def asked(document: Document, device: str = "cpu") -> list[CaseResult]:
    return [r for r in document.cases if r.asked and r.case.device == device]


@pytest.mark.parametrize("model", MODELS)
def test_every_cpu_case_ran(document: Document, model: str) -> None:
    results = [result for result in asked(document) if result.case.model == model]
    assert {(r.case.phase, r.case.label) for r in results} == LABELS
    assert [r.reason for r in results if r.status != "ok"] == []


def test_each_case_has_samples_profile_and_memory(document: Document) -> None:
    for result in asked(document):
        assert [sample.round for sample in result.samples] == [0, 1]
        assert result.latency is not None
        assert all(len(sample.values_s) == 3 for sample in result.samples)
        assert [c.wall_s > 0 for c in result.conditions] == [True, True]
        assert result.items_per_s == pytest.approx(result.case.batch / result.latency.median_s)
        assert result.latency.median_s > 0
        assert result.peak_memory_bytes is not None
        assert result.peak_memory_bytes > 1_000_000
        assert result.first_run_s is not None
        assert result.load_s is not None
        assert set(result.digests) >= {"parameters", "inputs"}
        assert ("graph" in result.digests) == (result.case.engine == "ort")
        assert document.environments[result.environment]["numpy"]
        assert result.profile is not None, result.notes


def test_operator_times_and_the_rest_are_the_wall(document: Document) -> None:
    from xbench import optypes

    for result in asked(document):
        profile = result.profile
        assert profile is not None
        total = sum(op.time_s for op in profile.ops)
        assert profile.unattributed_s >= 0
        assert total + profile.unattributed_s == pytest.approx(profile.wall_s, rel=1e-6)
        assert optypes.unknown_share(profile) < 0.02
        classes = {op.op_class for op in profile.ops}
        assert classes & {"Convolution", "MatMul"}
        stages = {op.stage for op in profile.ops}
        train = result.case.phase == "train"
        assert stages == ({"forward", "backward", "optimizer"} if train else {"forward"})


def test_placement_names_every_node(document: Document) -> None:
    for result in asked(document):
        (placement,) = result.placement
        assert placement.ep == "cpu"
        assert placement.time_share == pytest.approx(1.0)
        if result.case.engine == "ort":
            assert placement.nodes == sum(placement.ops.values())
            if result.case.model == "prednet":
                # 11 convolutions a step, 4 steps; nobody sees 6 of the last step's.
                assert placement.ops["Conv"] == 38


@pytest.mark.parametrize("model", MODELS)
def test_every_pair_agrees(document: Document, model: str) -> None:
    labels = {r.key: (r.case.phase, r.case.label) for r in document.cases if r.case.model == model}
    judged = [agreement for agreement in document.agreements if agreement.a in labels]
    found = {(labels[a.a], labels[a.b][1], a.what) for a in judged}
    wanted = set()
    for phase, what in (("infer", ("outputs",)), ("train", ("loss", "gradients", "trajectory"))):
        pairs = [
            ("tf cpu fp64", "torch cpu fp64"),
            ("torch cpu", "torch cpu fp64"),
            ("tf cpu", "torch cpu fp64"),
            ("tf cpu", "torch cpu"),
        ]
        if phase == "infer":
            pairs += [
                ("ort(torch) cpu", "torch cpu fp64"),
                ("ort(torch) cpu", "torch cpu"),
                ("ort(tf) cpu", "torch cpu fp64"),
                ("ort(tf) cpu", "tf cpu"),
            ]
        wanted |= {((phase, a), b, kind) for a, b in pairs for kind in what}
    assert found == wanted
    assert [a.sentence for a in judged if a.verdict != "agree"] == []
    for agreement in judged:
        assert agreement.evidence is not None
        assert agreement.evidence.decided_by
        assert agreement.tolerance is not None


@pytest.mark.parametrize("source", ["torch", "tf"])
@pytest.mark.parametrize("model", MODELS)
def test_its_exports_hold_the_parameters_by_name(
    document: Document, export_cache: Path, model: str, source: str
) -> None:
    """Those of inference, by canonical name and value; the interface of the specification."""
    case = next(r.case for r in document.cases if (r.case.model, r.case.source) == (model, source))
    spec = registry.model(model)
    config = registry.config(spec, case.size)
    with Launcher() as launcher:
        made = Exports(launcher, export_cache, print).get(case, Path("not read"))
    assert made.cached
    assert made.verified is not None
    kept = made.verified
    outputs = {f"outputs/{item.name}" for item in spec.outputs(config)}
    assert kept.agreement.verdict == "agree"
    assert {t.name for t in kept.agreement.tensors} == outputs | {f"{name}@1" for name in outputs}
    graph = onnx.load(made.graphs["probe"]).graph
    found = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    held = {item.name for item in spec.exported(config)}
    for name, value in draws.parameters(spec, case.size, "probe", case.seed).items():
        assert (name in found) == (name in held)
        assert name not in held or np.array_equal(found[name], value), name
    assert [value.name for value in graph.input] == [item.name for item in spec.inputs(config)]
    assert [value.name for value in graph.output] == [item.name for item in spec.outputs(config)]
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("source", ["torch", "tf"])
def test_a_translation_is_three_lstms_and_one_loop(
    document: Document, export_cache: Path, source: str
) -> None:
    """Nothing is turned at each step, and what no step changes does not go round."""
    case = next(
        r.case for r in document.cases if (r.case.model, r.case.source) == ("seq2seq", source)
    )
    config = registry.config(registry.model("seq2seq"), case.size)
    with Launcher() as launcher:
        made = Exports(launcher, export_cache, print).get(case, Path("not read"))
    graph = onnx.load(made.graphs["probe"]).graph
    assert [node.op_type for node in graph.node].count("LSTM") == config.layers
    (loop,) = (node for node in graph.node if node.op_type in ("Loop", "Scan"))
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert not {node.op_type for node in body.node} & {"Transpose", "Loop", "Scan", "If"}
    assert "key.weight" not in {name for node in body.node for name in node.input}
    # A count, a condition and a number, or something to scan; a word; h and c of every layer.
    assert len(loop.input) <= 4 + 2 * config.layers
    for value in (*graph.input, *graph.output):
        axes = [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        assert axes == ["batch", "source_length" if value.name == "source" else "target_length"]


def test_parity_is_far_below_its_limit(document: Document) -> None:
    labels = {r.key: r.case for r in document.cases}
    parity = [a for a in document.agreements if labels[a.a].precision == "fp64"]
    assert {a.what for a in parity} == {"outputs", "loss", "gradients", "trajectory"}
    for agreement in parity:
        for tensor in agreement.tensors:
            assert tensor.rms is not None
            assert tensor.reference_rms is not None
            assert tensor.rms <= 1e-9 * tensor.reference_rms, tensor.name


@pytest.mark.parametrize("model", MODELS)
def test_losses_stand_beside_the_trivial_predictor(document: Document, model: str) -> None:
    (table,) = (table for table in document.losses if table.model == model)
    spec = registry.model(model)
    assert (table.batch, table.loss) == (spec.batch["tiny"], spec.losses[0])
    assert registry.model_part(model, "data").BASELINE_NAME in table.baseline_name
    assert len(table.baseline) == 3
    trained = [r for r in asked(document) if (r.case.model, r.case.phase) == (model, "train")]
    for result in trained:
        assert len(result.loss) == 3
    one, other = (result.loss for result in trained)
    # Training amplifies rounding; whether it is rounding, the verdicts say.
    assert one == pytest.approx(other, rel=1e-2)


def test_cuda_cases_are_there_with_a_reason_or_ran_there(document: Document) -> None:
    results = asked(document, "cuda")
    labels = {(r.case.model, r.case.phase, r.case.label.replace("cuda", "cpu")) for r in results}
    assert labels == {(model, *label) for model in MODELS for label in LABELS}
    for result in results:
        if result.status == "unavailable":
            assert result.reason
            assert result.samples == []
            assert result.latency is None
        else:
            assert result.status == "ok"
            assert "cuda" in {placement.ep for placement in result.placement}


def test_exit_status(document: Document) -> None:
    unavailable = any(r.status == "unavailable" for r in document.cases)
    plain = exits.with_exit(document, allow=(), strict=False)
    assert plain.exit_status == (3 if unavailable else 0)
    allowed = exits.with_exit(document, allow=("unavailable",), strict=False)
    assert (allowed.exit_status, allowed.exit_reasons) == (0, [])
