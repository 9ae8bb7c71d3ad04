"""Operators of networks in double: ONNX's own node tests, and formulas written out by hand."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from torch.nn import functional

from xbench.runners.graph import attention, network, recurrent
from xbench.runners.graph.node import OPERATORS, Node, NotInDouble, Value

Array = np.ndarray[Any, Any]
MODULES = {module.__name__ for module in (attention, network, recurrent)}
MINE = {name for (domain, name), f in OPERATORS.items() if f.__module__ in MODULES and not domain}

# Here ONNX's reference takes size times scale for the new length, the definition and the engines
# the whole number: with these the first and the last element stay where they are.
WHOLE_LENGTHS = {
    "test_resize_downsample_scales_linear_align_corners": [[1, 4]],
    "test_resize_downsample_scales_cubic_align_corners": [
        [1, 2.5, 4],
        [7, 8.5, 10],
        [13, 14.5, 16],
    ],
}


def held(array: Any) -> Tensor | None:
    """An array as the interpreter holds it."""
    if array is None:
        return None
    array = np.asarray(array)
    wide = array.astype(np.float64) if "float" in array.dtype.name else array
    return torch.from_numpy(np.array(wide))


def ran(
    op: str, inputs: Sequence[Any], *, version: int = 18, outputs: int = 1, **attributes: Any
) -> tuple[Any, ...]:
    """All outputs of one operator."""
    node = Node(op, version=version, attributes=attributes, outputs=outputs)
    values: list[Value] = [held(item) for item in inputs]
    got = OPERATORS["", op](node, values)
    return got if isinstance(got, tuple) else (got,)


def one(op: str, inputs: Sequence[Any], **rest: Any) -> Array:
    """The first output of one operator."""
    got = ran(op, inputs, **rest)[0]
    assert got.dtype == torch.float64
    return np.asarray(got)


def referred(
    op: str, inputs: Sequence[Any], *, version: int, outputs: int = 1, **attributes: Any
) -> list[Any]:
    """All outputs of ONNX's reference, fed doubles."""
    names = [f"i{i}" if item is not None else "" for i, item in enumerate(inputs)]
    wide = [
        np.asarray(item, np.float64) if item is not None and item.dtype == np.float32 else item
        for item in inputs
    ]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(item.dtype), None)
        for name, item in zip(names, wide, strict=True)
        if item is not None
    ]
    outs = [f"o{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outs, **attributes)],
        "g",
        infos,
        [helper.make_tensor_value_info(name, 0, None) for name in outs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    feeds = {name: item for name, item in zip(names, wide, strict=True) if item is not None}
    got: list[Any] = ReferenceEvaluator(model).run(None, feeds)
    return got


def close(got: Any, want: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=atol)


def text(value: Any) -> Any:
    if isinstance(value, list):
        return [text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def test_node_tests_of_onnx() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    seen: Counter[str] = Counter()
    wrong = []
    for case in cases:
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type not in MINE:
            continue
        (proto,) = graph.node
        (version,) = [entry.version for entry in case.model.opset_import if not entry.domain]
        node = Node(
            proto.op_type,
            version=version,
            attributes={
                item.name: text(helper.get_attribute_value(item)) for item in proto.attribute
            },
            outputs=len(proto.output),
        )
        for inputs, outputs in case.data_sets:
            fed = dict(zip([item.name for item in graph.input], inputs, strict=True))
            values: list[Value] = [held(fed[name]) if name else None for name in proto.input]
            got = OPERATORS["", proto.op_type](node, values)
            every = got if isinstance(got, tuple) else (got,)
            want = dict(zip([item.name for item in graph.output], outputs, strict=True))
            seen[proto.op_type] += 1
            for name, value in zip(proto.output, every, strict=False):
                if not name:
                    continue
                assert isinstance(value, Tensor)
                expected = np.asarray(want[name])
                # What was rounded to 11 or 8 bits is compared as such.
                rough = {"float16": 2e-3, "bfloat16": 2e-2}.get(expected.dtype.name, 0.0)
                if case.name in WHOLE_LENGTHS:
                    expected = np.array([[WHOLE_LENGTHS[case.name]]], np.float32)
                if "float" in expected.dtype.name:
                    expected = expected.astype(np.float64)
                    assert value.dtype == torch.float64
                same = value.shape == expected.shape and np.allclose(
                    value.numpy(), expected, max(case.rtol, rough), max(case.atol, rough), True
                )
                if not same:
                    wrong.append(f"{case.name} {name}")
    assert wrong == []
    # A new version of ONNX may have more cases, never fewer; these have none of their own.
    assert sum(seen.values()) >= 300
    assert MINE - set(seen) == {"GlobalLpPool", "MaxRoiPool"}


# Convolutions and pooling


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    ceil: bool,
) -> list[list[list[int]]]:
    """For each axis, for each window, the places that it looks at (also in the padding)."""
    rank = len(sizes)
    axes = []
    for i, size in enumerate(sizes):
        reach = dilations[i] * (kernel[i] - 1) + 1
        steps = (size + pads[i] + pads[rank + i] - reach) / strides[i]
        count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
        starts = [n * strides[i] - pads[i] for n in range(count)]
        if ceil and starts[-1] >= size:
            starts.pop()
        axes.append([[s + k * dilations[i] for k in range(kernel[i])] for s in starts])
    return axes


GEOMETRIES = [
    ([7], [3], [2], [1], [2, 0]),
    ([7, 6], [2, 3], [1, 2], [2, 1], [0, 2, 1, 0]),
    ([5, 6], [3, 2], [3, 3], [1, 1], [1, 0, 0, 1]),
    ([4, 5, 4], [2, 1, 3], [1, 2, 2], [1, 1, 1], [1, 0, 0, 0, 0, 2]),
]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("sizes", "kernel", "strides", "dilations", "pads"), GEOMETRIES)
def test_conv(
    sizes: list[int],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    groups: int,
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 4, *sizes))
    weight = random.standard_normal((4, 4 // groups, *kernel))
    bias = random.standard_normal(4)
    axes = windows(sizes, kernel, strides, dilations, pads, False)
    want = np.zeros((2, 4, *(len(axis) for axis in axes)))
    want += bias.reshape(1, 4, *[1] * len(sizes))
    for out in range(4):
        first = out // (4 // groups) * (4 // groups)
        for place in itertools.product(*(range(len(axis)) for axis in axes)):
            for tap in itertools.product(*(range(k) for k in kernel)):
                at = [axis[p][k] for axis, p, k in zip(axes, place, tap, strict=True)]
                if all(0 <= n < size for n, size in zip(at, sizes, strict=True)):
                    for channel in range(4 // groups):
                        factor = weight[(out, channel, *tap)]
                        for image in range(2):
                            seen = x[(image, first + channel, *at)]
                            want[(image, out, *place)] += seen * factor
    rest: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": groups,
    }
    close(one("Conv", [x, weight, bias], **rest), want)
    # A transposed convolution without bias is the adjoint of the convolution.
    y = random.standard_normal(want.shape)
    extra = [
        size + pads[i] + pads[len(sizes) + i] - dilations[i] * (k - 1) - 1
        for i, (size, k) in enumerate(zip(sizes, kernel, strict=True))
    ]
    rest["output_padding"] = [e % s for e, s in zip(extra, strides, strict=True)]
    back = one("ConvTranspose", [y, weight], **rest)
    assert back.shape == x.shape
    close((back * x).sum(), (y * one("Conv", [x, weight], **rest)).sum())
    close(
        one("ConvTranspose", [y, weight, np.arange(4.0)], **rest) - back,
        np.broadcast_to(np.arange(4.0).reshape(1, 4, *[1] * len(sizes)), back.shape),
    )


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_of_conv(auto: str) -> None:
    x = np.arange(4.0).reshape(1, 1, 4)
    weight = np.array([[[1.0, 10.0]]])
    want = {"VALID": [10, 21, 32], "SAME_UPPER": [10, 21, 32, 3], "SAME_LOWER": [0, 10, 21, 32]}
    close(one("Conv", [x, weight], auto_pad=auto)[0, 0], want[auto])


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"auto_pad": "SAME_UPPER", "strides": [2]}, [1, 10, 102, 20]),
        ({"auto_pad": "SAME_LOWER", "strides": [2]}, [10, 102, 20, 200]),
        ({"output_shape": [4], "strides": [2]}, [10, 102, 20, 200]),
        ({"output_shape": [1, 1, 6], "strides": [2]}, [1, 10, 102, 20, 200, 0]),
        ({"output_padding": [1], "strides": [2]}, [1, 10, 102, 20, 200, 0]),
        ({"pads": [1, 0], "strides": [2], "dilations": [2]}, [0, 12, 0, 120, 0, 200]),
    ],
)
def test_shape_of_conv_transpose(attributes: dict[str, Any], want: list[float]) -> None:
    x, weight = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    close(one("ConvTranspose", [x, weight], **attributes)[0, 0], want)


def test_deform_conv_without_and_with_offsets() -> None:
    random = np.random.default_rng(1)
    x, weight = random.standard_normal((2, 4, 6, 5)), random.standard_normal((6, 2, 2, 3))
    bias = random.standard_normal(6)
    rest: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 0, 2], "group": 2}
    plain = one("Conv", [x, weight, bias], **rest)
    offset = np.zeros((2, 2 * 6 * 2, *plain.shape[2:]))
    close(one("DeformConv", [x, weight, offset, bias], offset_group=2, **rest), plain)
    offset.reshape(2, 2, 6, 2, *plain.shape[2:])[:, :, :, 1] = 1  # one column to the right
    moved = np.concatenate([x[..., 1:], np.zeros((2, 4, 6, 1))], -1)
    mask = np.full((2, 2 * 6, *plain.shape[2:]), 0.5)
    got = one("DeformConv", [x, weight, offset, bias, mask], offset_group=2, **rest)
    inner = (one("Conv", [moved, weight], **rest) / 2 + bias.reshape(1, 6, 1, 1))[..., :-2]
    close(got[..., :-2], inner)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("sizes", "kernel", "strides", "dilations", "pads"), GEOMETRIES)
def test_pooling(
    sizes: list[int],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    ceil: bool,
) -> None:
    x = np.random.default_rng(2).integers(-9, 9, (2, 3, *sizes)).astype(np.float64)
    rank = len(sizes)
    axes = windows(sizes, kernel, strides, dilations, pads, ceil)
    counts = [len(axis) for axis in axes]
    best, mean, wide, norm = (np.zeros((2, 3, *counts)) for _ in range(4))
    rows, columns = (np.zeros((2, 3, *counts), np.int64) for _ in range(2))
    plane = math.prod(sizes)
    for place in itertools.product(*(range(count) for count in counts)):
        every = list(itertools.product(*(axis[p] for axis, p in zip(axes, place, strict=True))))
        inside = [at for at in every if all(0 <= n < s for n, s in zip(at, sizes, strict=True))]
        counted = [
            at for at in every if all(n < sizes[i] + pads[rank + i] for i, n in enumerate(at))
        ]
        for image, channel in itertools.product(range(2), range(3)):
            values = [x[(image, channel, *at)] for at in inside]
            to = (image, channel, *place)
            best[to] = max(values)
            mean[to] = sum(values) / len(values)
            wide[to] = sum(values) / len(counted)
            norm[to] = sum(abs(value) ** 3 for value in values) ** (1 / 3)
            at = inside[values.index(max(values))]
            offset = (image * 3 + channel) * plane
            rows[to] = offset + np.ravel_multi_index(at, sizes)
            columns[to] = offset + np.ravel_multi_index(at, sizes, order="F")
    rest: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "ceil_mode": int(ceil),
    }
    close(one("MaxPool", [x], **rest), best)
    for order, want in ((0, rows), (1, columns)):
        values, indices = ran("MaxPool", [x], outputs=2, storage_order=order, **rest)
        close(values, best)
        assert indices.tolist() == want.tolist()
    close(one("AveragePool", [x], **rest), mean)
    close(one("AveragePool", [x], count_include_pad=1, **rest), wide)
    close(one("LpPool", [x], p=3, **rest), norm)
    small = ran("MaxPool", [x.astype(np.int8)], **rest)[0]
    assert small.dtype == torch.int8
    close(small, best)


def test_max_pool_of_nothing_but_infinity_names_an_element() -> None:
    x = np.full((1, 1, 3), -np.inf)
    values, indices = ran("MaxPool", [x], outputs=2, kernel_shape=[2], pads=[1, 1])
    assert values.tolist() == [[[-np.inf] * 4]]
    assert indices.tolist() == [[[0, 0, 1, 2]]]


def test_auto_pad_of_pooling_by_hand() -> None:
    x = np.arange(1.0, 6.0).reshape(1, 1, 5)
    rest: dict[str, Any] = {"kernel_shape": [2], "strides": [2]}
    close(one("MaxPool", [x], auto_pad="SAME_UPPER", **rest)[0, 0], [2, 4, 5])
    close(one("MaxPool", [x], auto_pad="SAME_LOWER", **rest)[0, 0], [1, 3, 5])
    close(one("MaxPool", [x], auto_pad="VALID", **rest)[0, 0], [2, 4])
    close(one("AveragePool", [x], auto_pad="SAME_LOWER", **rest)[0, 0], [1, 2.5, 4.5])


def test_global_pooling_and_unpooling() -> None:
    x = np.array([[[[3.0, -4.0], [0.0, 0.0]]]])
    assert one("GlobalLpPool", [x]).item() == 5
    assert one("GlobalLpPool", [x], p=1).item() == 7
    assert one("GlobalMaxPool", [x]).item() == 3
    assert one("GlobalAveragePool", [x]).item() == -0.25
    places = np.array([[[[1]], [[7]]]])
    rest: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    got = one("MaxUnpool", [np.array([[[[5.0]], [[6.0]]]]), places], **rest)
    assert got.tolist() == [[[[0, 5], [0, 0]], [[0, 0], [0, 6]]]]


def test_max_roi_pool_by_hand() -> None:
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    # Corners 1, 1 to 4, 3 after scaling; 4 columns in two bins of 2, 3 rows in two of 2.
    rois = np.array([[0, 2.0, 2.0, 8.0, 6.0], [0, 16.0, 16.0, 20.0, 20.0]])
    got = one("MaxRoiPool", [x, rois], pooled_shape=[2, 2], spatial_scale=0.5)
    assert got.tolist() == [[[[14, 16], [20, 22]]], [[[0, 0], [0, 0]]]]


def test_roi_align_shifts_by_half_from_opset_16() -> None:
    x = np.arange(36.0).reshape(1, 1, 6, 6)  # value = 6 * row + column: linear
    rois, image = np.array([[1.0, 1.0, 3.0, 3.0]]), np.array([0])
    assert one("RoiAlign", [x, rois, image], version=10).item() == pytest.approx(14)
    assert one("RoiAlign", [x, rois, image], version=16).item() == pytest.approx(10.5)
    thin = np.array([[2.0, 2.0, 2.0, 2.0]])  # before 16 at least one element wide
    assert one("RoiAlign", [x, thin, image], version=10).item() == pytest.approx(17.5)


# Normalisation


def test_batch_normalization_of_all_versions() -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((4, 3, 2, 2))
    scale, bias, mean = random.standard_normal((3, 3))
    variance = random.random(3) + 0.5
    epsilon = float(np.float32(1e-5))

    def normal(centre: Array, spread: Array) -> Array:
        where = (slice(None), None, None)
        plain: Array = (x - centre[where]) / np.sqrt(spread[where] + epsilon)
        moved: Array = plain * scale[where] + bias[where]
        return moved

    fed = [x, scale, bias, mean, variance]
    for version, rest in ((1, {"is_test": 1}), (6, {"is_test": 1}), (7, {}), (9, {}), (15, {})):
        close(one("BatchNormalization", fed, version=version, **rest), normal(mean, variance))
    now, spread = x.mean((0, 2, 3)), x.var((0, 2, 3))
    running = 0.75 * mean + 0.25 * now, 0.75 * variance + 0.25 * spread
    for version, count, rest in ((6, 5, {}), (9, 5, {}), (15, 3, {"training_mode": 1})):
        got = ran("BatchNormalization", fed, version=version, outputs=count, momentum=0.75, **rest)
        want = (normal(now, spread), *running, now, spread)[:count]
        for value, expected in zip(got, want, strict=True):
            close(value, expected)


def test_batch_normalization_by_feature_and_of_one_axis() -> None:
    x = np.random.default_rng(4).standard_normal((5, 2, 3))
    ones, zeros = np.ones((2, 3)), np.zeros((2, 3))
    got = ran("BatchNormalization", [x, ones, zeros, zeros, ones], version=7, outputs=5, spatial=0)
    close(got[3], x.mean(0))
    close(got[0], (x - x.mean(0)) / np.sqrt(x.var(0) + float(np.float32(1e-5))))
    flat = one("BatchNormalization", [x[:, 0, 0], [2.0], [1.0], [0.0], [1.0]], version=9, epsilon=0)
    close(flat, 2 * x[:, 0, 0] + 1)


def test_group_normalization_scales_by_group_then_by_channel() -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((2, 4, 3))
    plain = x.reshape(2, 2, 6)
    plain = (plain - plain.mean(2, keepdims=True)) / plain.std(2, keepdims=True)
    plain = plain.reshape(2, 4, 3)
    two, four = random.standard_normal(2), random.standard_normal(4)
    rest: dict[str, Any] = {"num_groups": 2, "epsilon": 0}
    want = plain * np.repeat(two, 2)[:, None] + np.repeat(two, 2)[:, None]
    close(one("GroupNormalization", [x, two, two], version=18, **rest), want)
    want = plain * four[:, None] + four[:, None]
    close(one("GroupNormalization", [x, four, four], version=21, **rest), want)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_lrn(size: int) -> None:
    x = np.random.default_rng(6).standard_normal((2, 4, 3, 2))
    squares = np.zeros_like(x)
    for c in range(4):
        low, high = max(0, c - (size - 1) // 2), min(3, c + math.ceil((size - 1) / 2))
        squares[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    got = one("LRN", [x], size=size, alpha=0.5, beta=0.7, bias=1.5)
    close(got, x / (1.5 + 0.5 / size * squares) ** 0.7)


# Resizing and sampling

TRANSFORMATIONS = ["half_pixel", "half_pixel_symmetric", "asymmetric", "tf_crop_and_resize"]


@pytest.mark.parametrize("how", TRANSFORMATIONS)
@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear"},
        {"mode": "linear", "antialias": 1},
        {"mode": "linear", "exclude_outside": 1},
        {"mode": "cubic", "cubic_coeff_a": -0.5},
        {"mode": "cubic", "exclude_outside": 1},
        {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
        *(
            {"nearest_mode": m}
            for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        ),
    ],
)
def test_resize_as_the_reference_of_onnx(attributes: dict[str, Any], how: str) -> None:
    x = np.random.default_rng(7).standard_normal((1, 2, 7, 6))
    rest: dict[str, Any] = {"coordinate_transformation_mode": how, "extrapolation_value": 3.5}
    rest.update(attributes, axes=[2, 3])
    # The reference computes the weights of cubic convolution in float32.
    tolerance = (1e-4, 1e-5) if attributes.get("mode") == "cubic" else (1e-10, 1e-12)
    roi = np.array([0.125, -0.25, 0.75, 0.5]) if how == "tf_crop_and_resize" else None
    for scales in ([0.375, 2.5], [1.75, 0.625]):
        fed = [x, roi, np.array(scales, np.float32)]
        (want,) = referred("Resize", fed, version=19, **rest)
        if how != "tf_crop_and_resize":  # see test_resize_has_whole_lengths
            close(one("Resize", fed, version=19, **rest), want, *tolerance)
    for sizes in ([3, 11], [13, 4], [7, 2]):
        fed = [x, roi, None, np.array(sizes)]
        (want,) = referred("Resize", fed, version=19, **rest)
        close(one("Resize", fed, version=19, **rest), want, *tolerance)
    if how == "tf_crop_and_resize":
        return
    for policy in ("not_larger", "not_smaller"):
        fed = [x, None, None, np.array([5, 9])]
        (want,) = referred("Resize", fed, version=19, keep_aspect_ratio_policy=policy, **rest)
        close(
            one("Resize", fed, version=19, keep_aspect_ratio_policy=policy, **rest),
            want,
            *tolerance,
        )


def test_cubic_resize_as_torch() -> None:
    x = torch.randn(1, 2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rest: dict[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.75}
    for sizes in ((17, 4), (5, 30)):
        fed = [x, None, None, np.array([1, 2, *sizes])]
        want = functional.interpolate(x, sizes, mode="bicubic")
        close(one("Resize", fed, **rest), want)
        want = functional.interpolate(x, sizes, mode="bicubic", align_corners=True)
        corners: dict[str, Any] = {"coordinate_transformation_mode": "align_corners"}
        close(one("Resize", fed, **rest, **corners), want)
        for mode in ("linear", "cubic"):
            want = functional.interpolate(x, sizes, mode=f"bi{mode}", antialias=True)
            smooth: dict[str, Any] = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
            close(one("Resize", fed, mode=mode, **smooth), want)


def test_resize_keeps_the_aspect_ratio_and_rounds_halves_up() -> None:
    x = np.zeros((6, 4))
    for policy, shape in (("not_larger", (3, 2)), ("not_smaller", (9, 6))):
        rest: dict[str, Any] = {"keep_aspect_ratio_policy": policy}
        assert one("Resize", [x, None, None, np.array([3, 6])], **rest).shape == shape
    odd = np.zeros((2, 5))
    rest = {"keep_aspect_ratio_policy": "not_larger"}
    assert one("Resize", [odd, None, None, np.array([1, 9])], **rest).shape == (1, 3)


def line(*values: float) -> Array:
    return np.array([[values]], np.float64)


def scales(*values: float) -> Array:
    return np.array([1, 1, *values], np.float32)


def test_resize_has_whole_lengths() -> None:
    rest: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    x = line(0, 1, 2, 3)
    close(one("Resize", [x, None, scales(0.6)], **rest)[0, 0], [0, 3])
    rest["coordinate_transformation_mode"] = "tf_crop_and_resize"
    roi = np.array([0, 0, 0, 1, 1, 0.5])
    close(one("Resize", [x, roi, scales(0.6)], **rest)[0, 0], [0, 1.5])
    close(one("Resize", [x, roi, None, np.array([1, 1, 1])], **rest)[0, 0], [0.75])
    rest["coordinate_transformation_mode"] = "pytorch_half_pixel"
    close(one("Resize", [x, None, None, np.array([1, 1, 1])], **rest)[0, 0], [0])
    rest["coordinate_transformation_mode"] = "half_pixel"
    close(one("Resize", [x, None, None, np.array([1, 1, 1])], **rest)[0, 0], [1.5])


def test_a_scale_is_a_float32() -> None:
    x = line(*range(10))
    # 0.7 is a little less as a float32, but times 10 it is 7 there.
    assert one("Resize", [x, None, scales(0.7)]).shape == (1, 1, 7)
    # 1.6 is a little more: element 8 of the new axis is still element 5 of the old one.
    rest: dict[str, Any] = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    assert one("Resize", [x, None, scales(1.6)], **rest)[0, 0, 8] == 5
    rest["nearest_mode"] = "ceil"
    assert one("Resize", [x, None, scales(0.3)], **rest)[0, 0].tolist() == [0, 4, 7]


def test_resize_and_upsample_of_old_opsets() -> None:
    x = np.array([[[[1.0, 2, 3, 4], [5, 6, 7, 8]]]])
    small = scales(0.6, 0.6)
    # The node tests of ONNX 1.5, which had opset 10.
    close(one("Resize", [x, small], version=10), [[[[1, 3]]]])
    close(one("Resize", [x, small], version=10, mode="linear"), [[[[1, 1 + 1 / float(small[2])]]]])
    square = np.array([[[[1.0, 2], [3, 4]]]])
    double = np.repeat(np.repeat(square, 2, 2), 3, 3)
    wide = [1.0, 1.0, 2.0, 3.0]
    close(one("Resize", [square, np.array(wide)], version=10), double)
    close(one("Upsample", [square, np.array(wide)], version=9), double)
    close(one("Upsample", [square], version=7, scales=wide), double)
    close(one("Upsample", [square], version=1, height_scale=2.0, width_scale=3.0), double)
    rest: dict[str, Any] = {"mode": "bilinear", "height_scale": 1.0, "width_scale": 2.0}
    close(one("Upsample", [square], version=1, **rest), [[[[1, 1.5, 2, 2], [3, 3.5, 4, 4]]]])
    rest = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    fed = [line(0, 1, 2, 3), None, None, np.array([1, 1, 2])]
    close(one("Resize", fed, version=11, **rest)[0, 0], [1, 3])
    empty = np.array([], np.float32)
    fed = [square, empty, empty, np.array([1, 1, 4, 6])]
    close(one("Resize", fed, version=11), double)


def test_resize_of_integers_and_booleans() -> None:
    x = np.array([[[0, 1, 2, 250]]], np.uint8)
    got = ran("Resize", [x, None, np.array([1, 1, 1, 1.0])[:3], None], mode="linear")[0]
    assert got.dtype == torch.uint8
    fed = [x, None, None, np.array([1, 1, 2])]
    assert ran("Resize", fed, mode="linear")[0].tolist() == [[[0, 126]]]  # 0.5 and 126, half even
    up = ran("Resize", [x > 1, None, None, np.array([1, 1, 8])])[0]
    assert up.tolist() == [[[False] * 4 + [True] * 4]]
    with pytest.raises(NotInDouble):
        ran("Resize", [x > 1, None, None, np.array([1, 1, 8])], mode="linear")


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    generator = torch.Generator().manual_seed(8)
    kind: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    for sizes, outs in (((5, 4), (3, 7)), ((3, 4, 5), (2, 3, 2))):
        if len(sizes) == 3 and mode == "bicubic":
            continue
        x = torch.randn(2, 3, *sizes, **kind)
        grid = torch.randn(2, *outs, len(sizes), **kind) * 2
        want = functional.grid_sample(x, grid, mode, padding, align)
        for version, name in ((16, mode), (20, modes.get(mode, mode))):
            rest: dict[str, Any] = {"padding_mode": padding, "align_corners": int(align)}
            got = one("GridSample", [x, grid], version=version, mode=name, **rest)
            close(got, want)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid(align: bool) -> None:
    for sizes in ((3, 4), (2, 2), (2, 3, 4)):
        rank = len(sizes)
        theta = torch.arange(2.0 * rank * (rank + 1), dtype=torch.float64).sin()
        theta = theta.reshape(2, rank, rank + 1)
        want = functional.affine_grid(theta, [2, 1, *sizes], align)
        got = one("AffineGrid", [theta, np.array([2, 1, *sizes])], align_corners=int(align))
        close(got, want)


# Recurrent

SIMPLE: dict[str, Callable[[Array], Array]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Softplus": lambda x: np.log(1 + np.exp(x)),
    "Elu": lambda x: np.where(x >= 0, x, 0.3 * (np.exp(x) - 1)),
    "LeakyRelu": lambda x: np.where(x >= 0, x, 0.3 * x),
    "HardSigmoid": lambda x: np.clip(0.3 * x + 0.6, 0, 1),
    "ScaledTanh": lambda x: 0.3 * np.tanh(0.6 * x),
    "Affine": lambda x: 0.3 * x + 0.6,
    "ThresholdedRelu": lambda x: np.where(x >= 0.3, x, 0),
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def by_hand(
    op: str,
    x: Array,
    weights: Sequence[Array],
    states: tuple[Array, Array],
    names: Sequence[str],
    more: dict[str, Any],
) -> tuple[Array, Array, Array]:
    """One row, one direction: its outputs, the last state and the last cell."""
    state, cell = states
    w, r, b, peepholes = weights
    width, clip = len(state), more.get("clip", np.inf)
    parts = len(w) // width

    def act(which: int, value: Array) -> Array:
        return SIMPLE[names[which]](np.clip(value, -clip, clip))

    def of(matrix: Array, gate: int) -> Array:
        cut: Array = matrix[gate * width : (gate + 1) * width]
        return cut

    def drive(gate: int, back: Array, now: Array) -> Array:
        sums: Array = of(w, gate) @ now + of(r, gate) @ back
        return sums + of(b, gate) + of(b, parts + gate)

    outputs = []
    for now in x:
        if op == "RNN":
            state = act(0, drive(0, state, now))
        elif op == "GRU":
            update, reset = act(0, drive(0, state, now)), act(0, drive(1, state, now))
            inner = drive(2, reset * state, now)
            if more.get("linear_before_reset"):
                inner = of(w, 2) @ now + of(b, 2) + reset * (of(r, 2) @ state + of(b, 5))
            state = (1 - update) * act(1, inner) + update * state
        else:  # gates in the order i, o, f, c; peepholes in the order i, o, f
            into = act(0, drive(0, state, now) + of(peepholes, 0) * cell)
            forget = act(0, drive(2, state, now) + of(peepholes, 2) * cell)
            if more.get("input_forget"):
                forget = 1 - into
            cell = forget * cell + into * act(1, drive(3, state, now))
            out = act(0, drive(1, state, now) + of(peepholes, 1) * cell)
            state = out * act(2, cell)
        outputs.append(state)
    return np.array(outputs).reshape(-1, width), state, cell


@pytest.mark.parametrize(
    ("op", "more"),
    [
        *((op, {}) for op in DEFAULTS),
        *((op, {"clip": 0.4}) for op in DEFAULTS),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "clip": 0.5}),
        ("LSTM", {"input_forget": 1}),
        ("RNN", {"activations": ["Softplus"]}),
        ("RNN", {"activations": ["relu"]}),
        ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
        ("GRU", {"activations": ["Affine", "Softplus"], "linear_before_reset": 1}),
        ("GRU", {"activations": ["Relu", "ThresholdedRelu"], "linear_before_reset": 1}),
        ("LSTM", {"activations": ["Sigmoid", "Elu", "ScaledTanh"], "per": (2, 1)}),
        ("LSTM", {"activations": ["HardSigmoid", "LeakyRelu", "Relu"], "per": (2, 1)}),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent(op: str, more: dict[str, Any], direction: str) -> None:
    random = np.random.default_rng(9)
    steps, batch, size, width = 5, 4, 2, 3
    ways = {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}[direction]
    count, rows = len(ways), GATES[op] * width
    x = random.standard_normal((steps, batch, size))
    w = random.standard_normal((count, rows, size))
    r = random.standard_normal((count, rows, width)) / 2
    b = random.standard_normal((count, 2 * rows)) / 2
    first, memory = random.standard_normal((2, count, batch, width))
    p = random.standard_normal((count, 3 * width))
    lengths = np.array([5, 2, 0, 3], np.int32)
    attributes = dict(more)
    alphas, betas = attributes.pop("per", (1, 1))
    names = more.get("activations", DEFAULTS[op])
    if "activations" in more:
        attributes.update(activations=names * count)
        attributes.update(activation_alpha=[0.3] * alphas * count)
        attributes.update(activation_beta=[0.6] * betas * count)
    y = np.zeros((steps, count, batch, width))
    last, cells = np.zeros((2, count, batch, width))
    for way, row in itertools.product(range(count), range(batch)):
        own = x[: lengths[row], row][:: ways[way]]
        outs, last[way, row], cells[way, row] = by_hand(
            op,
            own,
            (w[way], r[way], b[way], p[way]),
            (first[way, row], memory[way, row]),
            [{"relu": "Relu"}.get(name, name) for name in names],
            more,
        )
        y[: lengths[row], way, row] = outs[:: ways[way]]
    want = [y, last, cells] if op == "LSTM" else [y, last]
    fed = [x, w, r, b, lengths, first]
    attributes.update(direction=direction, hidden_size=width)
    every = ran(op, [*fed, memory, p][: 8 if op == "LSTM" else 6], **attributes)
    for got, expected in zip(every, want, strict=True):
        close(got, expected)
    # The same with the batch first.
    fed = [x.swapaxes(0, 1), w, r, b, lengths, first.swapaxes(0, 1)]
    every = ran(
        op, [*fed, memory.swapaxes(0, 1), p][: 8 if op == "LSTM" else 6], layout=1, **attributes
    )
    close(every[0], y.transpose(2, 0, 1, 3))
    for state, expected in zip(every[1:], want[1:], strict=True):
        close(state, expected.swapaxes(0, 1))


def test_recurrent_without_what_may_be_left_out() -> None:
    x, w, r = np.ones((2, 1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))
    y, last = ran("RNN", [x, w, r])
    close(y.flatten(), [np.tanh(1), np.tanh(1 + np.tanh(1))])
    close(last.flatten(), [np.tanh(1 + np.tanh(1))])
    # A default is a float32.
    (y, _) = ran("RNN", [-x[:1], w, r], activations=["LeakyRelu"])
    close(y.flatten(), [-float(np.float32(0.01))])


def test_what_recurrent_operators_refuse() -> None:
    x, w, r = np.ones((2, 1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))
    with pytest.raises(NotInDouble, match="Cosine"):
        ran("RNN", [x, w, r], activations=["Cosine"])
    with pytest.raises(NotInDouble, match="alpha"):
        ran("RNN", [x, w, r], activations=["ScaledTanh"])
    with pytest.raises(ValueError, match="directions"):
        ran("RNN", [x, w, r], direction="bidirectional")


# Attention


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("version", "attributes", "mask", "past"),
    [
        (23, {}, None, False),
        (23, {"is_causal": 1}, "float", True),
        (23, {"softcap": 1.5, "scale": 0.25}, "bool", True),
        (24, {"is_causal": 1, "softcap": 0.5}, "short", False),
        (24, {"is_causal": 1}, "bool", "lengths"),
        (25, {"left_window_size": 1, "right_window_size": 0}, "float", True),
        (25, {"left_window_size": 2, "right_window_size": 1}, None, "lengths"),
    ],
)
def test_attention(
    version: int, attributes: dict[str, Any], mask: str | None, past: bool | str, mode: int
) -> None:
    random = np.random.default_rng(10)
    query = random.standard_normal((2, 4, 3, 8))
    key, value = random.standard_normal((2, 2, 5, 8)), random.standard_normal((2, 2, 5, 6))
    keys = 9 if past is True else 5
    shape = (2, 1, 3, keys) if mask == "bool" else (3, keys - (mask == "short"))
    bias: Array | None = random.standard_normal(shape)
    if mask == "bool":
        assert bias is not None
        bias = bias > 0.3
        bias[1, 0, 1] = False  # a query that no key is left for
    old = random.standard_normal((2, 2, 4, 8)), random.standard_normal((2, 2, 4, 6))
    fed = [query, key, value, None if mask is None else bias]
    fed += list(old) if past is True else [None, None]
    if past == "lengths":
        fed.append(np.array([2, 5]))
    rest = {"qk_matmul_output_mode": mode, **attributes}
    want = referred("Attention", fed, version=version, outputs=4, **rest)
    if mode == 0:  # the reference shows what softcap made of it, against the definition
        plain = {name: item for name, item in rest.items() if name != "softcap"}
        want[3] = referred("Attention", fed, version=version, outputs=4, **plain)[3]
    got = ran("Attention", fed, version=version, outputs=4, **rest)
    for value_got, expected in zip(got, want, strict=True):
        assert value_got.dtype == torch.float64
        close(value_got, expected, 1e-6, 1e-6)  # the reference keeps attributes in float32
    # 3-D inputs of the same numbers.
    flat = [x.swapaxes(1, 2).reshape(2, x.shape[2], -1) for x in (query, key, value)]
    rest |= {"q_num_heads": 4, "kv_num_heads": 2}
    again = ran("Attention", [*flat, *fed[3:]], version=version, outputs=4, **rest)
    close(again[0], got[0].transpose(1, 2).flatten(2))
    for a, g in zip(again[1:], got[1:], strict=True):
        close(a, g)


def test_attention_by_hand() -> None:
    random = np.random.default_rng(11)
    query, key, value = random.standard_normal((3, 1, 1, 4, 8))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(8)
    scores[..., np.triu_indices(4, 1)[0], np.triu_indices(4, 1)[1]] = -np.inf
    weights = np.exp(scores)
    want = weights / weights.sum(-1, keepdims=True) @ value
    close(one("Attention", [query, key, value], version=23, is_causal=1), want)
    with pytest.raises(ValueError, match="q_num_heads"):
        one("Attention", [query[0], key[0], value[0]], version=23)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
def test_rotary_embedding_turns_pairs(interleaved: int, part: int) -> None:
    random = np.random.default_rng(12)
    x = random.standard_normal((2, 3, 5, 8))
    width = part or 8
    angles = random.standard_normal((7, width // 2))
    positions = random.integers(0, 7, (2, 5))
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + width // 2) for i in range(width // 2)]
    want = x.copy()
    for i, (a, b) in enumerate(pairs):
        turn = np.exp(1j * angles[positions][:, None, :, i])
        turned = (x[..., a] + 1j * x[..., b]) * turn
        want[..., a], want[..., b] = turned.real, turned.imag
    rest: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": part}
    fed = [x, np.cos(angles), np.sin(angles), positions]
    close(one("RotaryEmbedding", fed, version=23, **rest), want)
    fed = [x, np.cos(angles)[positions], np.sin(angles)[positions]]
    close(one("RotaryEmbedding", fed, version=23, **rest), want)
    flat = x.swapaxes(1, 2).reshape(2, 5, 24)
    got = one("RotaryEmbedding", [flat, *fed[1:]], version=23, num_heads=3, **rest)
    close(got, want.swapaxes(1, 2).reshape(2, 5, 24))


# What is refused


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error"),
    [
        ("Conv", [np.ones((1, 1, 1, 1, 1, 1))] * 2, {}, NotInDouble),
        ("ConvTranspose", [np.ones((1, 1, 1, 1, 1, 1))] * 2, {}, NotInDouble),
        ("Conv", [np.ones((1, 1, 3))] * 2, {"auto_pad": "SAME"}, ValueError),
        ("Resize", [line(1, 2), None, scales(2)], {"mode": "quintic"}, NotInDouble),
        ("Resize", [line(1, 2)], {}, ValueError),
        ("Resize", [line(1, 2), None, scales(2)], {"nearest_mode": "odd"}, ValueError),
        (
            "Resize",
            [line(1, 2), None, scales(2)],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            ValueError,
        ),
        ("GridSample", [np.ones((1, 1, 2)), np.ones((1, 1, 1))], {"mode": "odd"}, ValueError),
        ("Conv", [None, np.ones((1, 1, 1))], {}, TypeError),
    ],
)
def test_what_is_refused(
    op: str, inputs: list[Any], attributes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ran(op, inputs, **attributes)
