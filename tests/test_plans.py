"""A saved plan gives back the very request, and refuses whatever would be another run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xbench import plan as planning
from xbench import plans, tensors
from xbench.errors import DataError, StoreError, UsageError
from xbench.plan import Request

EVERYTHING: dict[str, Any] = {
    "models": ("prednet", "other"), "files": (), "size": "tiny", "phases": ("train",),
    "engines": ("ort", "torch"), "sources": ("tf",), "devices": ("cuda", "cpu"),
    "implied": ("cuda",), "batch": (1, 8), "threads": (2, 4), "precisions": ("fp16", "fp32"),
    "concurrency": (1, 3), "ort_opt": ("0", "99"), "options": {"provider.cuda.use_tf32": "0"},
    "shapes": {"x": ((1, 3), (2, 3)), "s": ((),)}, "inputs": None, "against": "m.onnx",
    "atol": {"": 1e-3, "y": 0.5}, "rtol": {"y": 0.25}, "seed": 7, "steps": 3, "loss": "L_all",
    "draws": ("fed",),
    "data": "noise", "rounds": 12, "budget_s": 2.5, "ci_width": 0.01, "iterations": 9,
    "soak_s": 30.0, "speed": False, "profile": False, "time_limit_s": 12.0, "fresh": "spawn",
    "cache": "there",
}  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a graph")
    return path


def edit(path: Path, **fields: Any) -> None:
    """Set fields at the top of a written plan."""
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | fields))


def test_every_field_of_a_request_comes_back(plan: Path) -> None:
    assert set(EVERYTHING) == set(Request.__struct_fields__)
    request = Request(**EVERYTHING)
    plans.save(request, plan)
    assert plans.load(plan) == request


def test_the_default_request_comes_back(plan: Path) -> None:
    plans.save(Request(), plan)
    assert plans.load(plan) == Request()


def test_a_time_limit_without_end_comes_back_if_it_may_be_asked_for(plan: Path) -> None:
    """JSON has no infinity: it must not become something else on the way."""
    request = Request(models=("prednet",), time_limit_s=math.inf)
    try:
        planning.check(request)
    except UsageError:
        return
    plans.save(request, plan)
    assert plans.load(plan) == request


def test_the_files_are_known_by_their_content(plan: Path, graph: Path, tmp_path: Path) -> None:
    arrays, data = tmp_path / "x.npz", tmp_path / "data.bin"
    arrays.write_bytes(b"arrays")
    data.write_bytes(b"data")
    request = Request(files=(str(graph),), inputs=str(arrays), data=str(data))
    plans.save(request, plan)
    assert plans.load(plan) == request
    written = msgspec.json.decode(plan.read_bytes())
    assert written["schema"] == plans.SCHEMA
    assert written["files"] == {
        str(path): tensors.digest_file(path) for path in (graph, arrays, data)
    }


@pytest.mark.parametrize("what", ["files", "inputs", "data"])
def test_a_file_that_changed_is_another_run(what: str, plan: Path, graph: Path) -> None:
    value: Any = (str(graph),) if what == "files" else str(graph)
    plans.save(Request(**{what: value}), plan)
    graph.write_bytes(b"a graph.")
    with pytest.raises(DataError, match="has changed since") as caught:
        plans.load(plan)
    assert str(graph) in str(caught.value)
    graph.write_bytes(b"a graph")
    assert plans.load(plan)


def test_a_file_that_is_gone_is_named(plan: Path, graph: Path) -> None:
    plans.save(Request(files=(str(graph),)), plan)
    graph.unlink()
    with pytest.raises(DataError, match="is not there") as caught:
        plans.load(plan)
    assert str(graph) in str(caught.value)


def test_a_name_of_data_has_no_digest(plan: Path) -> None:
    plans.save(Request(data="moving-mnist"), plan)
    assert msgspec.json.decode(plan.read_bytes())["files"] == {}
    assert plans.load(plan).data == "moving-mnist"


@pytest.mark.parametrize("change", ["content", "name", "another"])
def test_a_folder_of_data_that_has_changed_is_named(
    plan: Path, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "frames"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "a.png").write_bytes(b"1")
    plans.save(Request(data=str(folder)), plan)
    assert plans.load(plan).data == str(folder)
    if change == "content":
        (folder / "below" / "a.png").write_bytes(b"2")
    elif change == "name":
        (folder / "below" / "a.png").rename(folder / "below" / "b.png")
    else:
        (folder / "c.png").write_bytes(b"3")
    with pytest.raises(DataError, match="has changed since"):
        plans.load(plan)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the plan .*No such file"):
        plans.load(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot read the plan"):
        plans.load(tmp_path)


def test_a_plan_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write the plan .*No such file"):
        plans.save(Request(), tmp_path / "none" / "plan.json")


@pytest.mark.parametrize("schema", [0, 2, 99])
def test_another_schema_is_named(schema: int, plan: Path) -> None:
    # Whatever else another schema has in it, the number is what is wrong.
    plan.write_bytes(msgspec.json.encode({"schema": schema, "request": 5}))
    with pytest.raises(DataError, match=f"schema {schema}; this xbench reads {plans.SCHEMA}"):
        plans.load(plan)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"schema": "1"}',
        b'{"schema": 1}',
        b'{"schema": 1, "xbench": "1", "request": []}',
        b'{"schema": 1, "xbench": "1", "request": {"seed": "x"}}',
        b'{"schema": 1, "xbench": "1", "request": {"batch": 3}}',
        b'{"schema": 1, "xbench": "\xff", "request": {}}',
        b"\xff\xfe",
        b'{"schema": 1, "request": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_plan_is_refused(content: bytes, plan: Path) -> None:
    plan.write_bytes(content)
    with pytest.raises(DataError, match="not a plan of xbench, or it is damaged") as caught:
        plans.load(plan)
    assert str(plan) in str(caught.value)


def test_a_plan_cut_short_is_refused(plan: Path) -> None:
    plans.save(Request(**EVERYTHING), plan)
    whole = plan.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        plan.write_bytes(whole[:length])
        with pytest.raises(DataError):
            plans.load(plan)


def test_a_field_that_this_xbench_does_not_know_is_not_left_out(plan: Path) -> None:
    """A plan with more in it, of a newer version or misspelt, would be another run without it."""
    plans.save(Request(), plan)
    edit(plan, request={"roundz": 30})
    with pytest.raises(DataError, match="roundz"):
        plans.load(plan)


def test_a_name_that_is_no_text_cannot_be_kept(plan: Path) -> None:
    with pytest.raises(StoreError):
        plans.save(Request(data="odd\udcff"), plan)


def test_a_file_that_cannot_be_read_is_said(
    plan: Path, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(files=(str(graph),))
    plans.save(request, plan)

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(tensors, "digest_file", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        plans.load(plan)
    with pytest.raises(DataError, match="Permission denied"):
        plans.save(request, plan)
