"""From a request to cases: what comes out, in which order, and what is refused how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from xbench import plan, registry
from xbench.errors import UsageError
from xbench.plan import Request
from xbench.spec import DEVICES, PHASES

REQUEST = Request(
    models=("prednet",), size="tiny", engines=("torch", "tf"), sources=("torch", "tf")
)


def asked(**fields: Any) -> Request:
    return msgspec.structs.replace(REQUEST, **fields)


def test_cases_come_by_phase_engine_source_and_device() -> None:
    cases = plan.cases(asked(engines=("ort", "torch"), devices=("cuda", "cpu")))
    assert [(c.phase, c.engine, c.source, c.device) for c in cases] == [
        ("infer", "ort", "torch", "cuda"),
        ("infer", "ort", "torch", "cpu"),
        ("infer", "ort", "tf", "cuda"),
        ("infer", "ort", "tf", "cpu"),
        ("infer", "torch", None, "cuda"),
        ("infer", "torch", None, "cpu"),
        ("train", "torch", None, "cuda"),
        ("train", "torch", None, "cpu"),
    ]


def test_everything_asked_for_arrives_in_the_case() -> None:
    (case,) = plan.cases(
        asked(engines=("tf",), phases=("train",), batch=(3,), threads=(7,), seed=11, loss="L_all")
    )
    assert (case.model, case.size, case.phase, case.engine) == ("prednet", "tiny", "train", "tf")
    assert (case.batch, case.threads, case.seed, case.loss) == (3, 7, 11, "L_all")
    assert case.shape == {"frames": (3, 4, 3, 32, 40)}


def test_what_nobody_asked_for_is_the_default_of_the_model() -> None:
    infer, train = plan.cases(asked(engines=("torch",)))
    spec = registry.model("prednet")
    assert infer.batch == spec.batch["tiny"]
    assert (infer.loss, train.loss) == ("", spec.losses[0])


def test_no_two_cases_are_one() -> None:
    cases = plan.cases(asked(engines=("torch", "tf", "ort"), devices=DEVICES))
    assert len({case.key for case in cases}) == len(cases) == 4 + 4 + 4


def test_an_inference_engine_has_no_training_cases() -> None:
    assert {c.phase for c in plan.cases(asked(engines=("ort",)))} == {"infer"}
    with pytest.raises(UsageError, match="nothing to run: ort cannot train"):
        plan.cases(asked(engines=("ort",), phases=("train",)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 0}, "--rounds must be above zero, not 0"),
        ({"rounds": -1}, "--rounds must be above zero, not -1"),
        ({"budget_s": 0.0}, "--budget must be above zero, not 0"),
        ({"budget_s": float("nan")}, "--budget must be above zero, not nan"),
        ({"budget_s": float("inf")}, "--budget must be finite"),
        ({"time_limit_s": -5.0}, "--time-limit must be above zero, not -5"),
        ({"time_limit_s": float("nan")}, "--time-limit must be above zero, not nan"),
        ({"steps": 0}, "--steps must be above zero, not 0"),
        ({"threads": (1, 0)}, "--threads must be above zero, not 0"),
        ({"batch": (0,)}, "--batch must be above zero, not 0"),
        ({"batch": (1, -2)}, "--batch must be above zero, not -2"),
        ({"seed": -1}, "--seed must be from 0 to 2147483647, not -1"),
        ({"seed": 2**31}, "--seed must be from 0 to 2147483647, not 2147483648"),
        ({"fresh": "spwan"}, "did you mean 'spawn'"),
        ({"devices": ("cpu", "gpu")}, "unknown EP 'gpu'"),
        ({"devices": ("cud",)}, "did you mean 'cuda'"),
        ({"models": ("prednet", "pretnet")}, "did you mean 'prednet'"),
        ({"size": "tiniest"}, "did you mean 'tiny'"),
        ({"loss": "L1"}, "unknown loss of prednet 'L1'"),
        ({"engines": ("torhc",)}, "did you mean 'torch'"),
    ],
)
def test_a_bad_value_is_one_clear_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.cases(asked(**fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"rounds": 1},
        {"steps": 1},
        {"threads": (1,)},
        {"batch": (1,)},
        {"seed": 0},
        {"fresh": "spawn"},
    ],
)
def test_the_smallest_good_value_is_good(fields: dict[str, Any]) -> None:
    assert plan.cases(asked(**fields))


def test_the_default_request_is_good() -> None:
    request = Request(models=tuple(registry.model_names()), engines=("torch",))
    assert {case.size for case in plan.cases(request)} == {"small"}
    assert {case.phase for case in plan.cases(request)} == set(PHASES)


@pytest.mark.parametrize("engines", [("torch",), ("tf",), ("ort",), ()])
def test_whatever_is_measured_the_natives_that_ship_are_the_reference(
    engines: tuple[str, ...],
) -> None:
    found = plan.natives(asked(engines=engines))
    assert found[0] == "torch"
    assert "tf" in found
    assert not {"ort", "fake"} & set(found)


@pytest.mark.parametrize("engines", [("fake",), ("torch", "fake")])
def test_an_engine_of_the_tests_is_its_own_reference(engines: tuple[str, ...]) -> None:
    assert plan.natives(asked(engines=engines)) == ["fake"]


def test_all_that_ships_is_measured_and_nothing_else() -> None:
    assert {"torch", "tf", "ort"} <= set(plan.shipped_engines())
    assert "fake" not in plan.shipped_engines()
    assert plan.engine_names(None) == tuple(plan.shipped_engines())


def test_engines_by_name() -> None:
    assert plan.engine_names("ort, fake,ort") == ("ort", "fake")
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        plan.engine_names("tf,torhc")
    for nothing in ("", " , "):
        with pytest.raises(UsageError, match="no engine given"):
            plan.engine_names(nothing)


def test_names_of_a_kind() -> None:
    assert plan.names("phase", None, ["infer", "train"]) == ("infer", "train")
    assert plan.names("phase", "train", ["infer", "train"]) == ("train",)
    with pytest.raises(UsageError, match=r"unknown phase 'trian': did you mean 'train'"):
        plan.names("phase", "trian", ["infer", "train"])


@pytest.mark.parametrize(
    ("signs", "devices"),
    [
        ((), ("cpu",)),
        (("/dev/nvidiactl",), ("cpu", "cuda")),
        (("/proc/driver/nvidia/version",), ("cpu", "cuda")),
        (("/dev/dxg",), ("cpu", "cuda")),
        (("/dev/null",), ("cpu",)),
    ],
)
def test_cuda_is_tried_where_there_is_a_sign_of_a_driver(
    signs: tuple[str, ...], devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in signs)
    assert plan.default_devices() == devices
