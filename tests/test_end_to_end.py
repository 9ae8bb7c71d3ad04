"""The main job with the real frameworks: one run of PredNet tiny, looked at from all sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench import exits, plan, run
from xbench.plan import Request
from xbench.progress import Progress
from xbench.result import CaseResult, Document

ENGINES = ("torch", "tf", "ort")
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
        models=("prednet",),
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


def test_every_cpu_case_ran(document: Document) -> None:
    results = asked(document)
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
        assert "Convolution" in classes
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
            # 11 convolutions a step, 4 steps; nobody sees 6 of the last step's.
            assert placement.ops["Conv"] == 38


def test_every_pair_agrees(document: Document) -> None:
    labels = {r.key: (r.case.phase, r.case.label) for r in document.cases}
    found = {(labels[a.a], labels[a.b][1], a.what) for a in document.agreements}
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
    assert [a.sentence for a in document.agreements if a.verdict == "disagree"] == []
    for agreement in document.agreements:
        assert agreement.evidence is not None
        assert agreement.evidence.decided_by
        assert agreement.tolerance is not None


def test_parity_is_far_below_its_limit(document: Document) -> None:
    labels = {r.key: r.case for r in document.cases}
    parity = [a for a in document.agreements if labels[a.a].precision == "fp64"]
    assert {a.what for a in parity} == {"outputs", "loss", "gradients", "trajectory"}
    for agreement in parity:
        for tensor in agreement.tensors:
            assert tensor.rms is not None
            assert tensor.reference_rms is not None
            assert tensor.rms <= 1e-9 * tensor.reference_rms, tensor.name


def test_losses_stand_beside_the_trivial_predictor(document: Document) -> None:
    (table,) = document.losses
    assert (table.model, table.batch) == ("prednet", 2)
    assert table.loss == "L0"
    assert "copy the last frame" in table.baseline_name
    assert len(table.baseline) == 3
    trained = [r for r in asked(document) if r.case.phase == "train"]
    for result in trained:
        assert len(result.loss) == 3
    one, other = (result.loss for result in trained)
    assert one == pytest.approx(other, rel=1e-5)


def test_cuda_cases_are_there_with_a_reason_or_ran_there(document: Document) -> None:
    results = asked(document, "cuda")
    assert {(r.case.phase, r.case.label.replace("cuda", "cpu")) for r in results} == LABELS
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
