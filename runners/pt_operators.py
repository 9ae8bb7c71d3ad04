"""Every operator that torch runs in a body, held against itself in float64 on the inputs it had.

No reference of the whole network is needed: an operator is right when it is within its own bound
on its own inputs, and then a large difference at the end is rounding that the network amplifies.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.module_tracker import ModuleTracker

from xbench import numerics
from xbench.operators import check, looped, summed_up
from xbench.result import OperatorCheck, Operators
from xbench.verdict import EPS

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a call."""
Results = list[Tensor | None]
Array = np.ndarray[Any, Any]

WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
EPSILON = {
    torch.float32: EPS["fp32"],
    torch.bfloat16: EPS["bf16"],
    torch.float16: EPS["fp16"],
    torch.complex64: EPS["fp32"],
}
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

UNFILLED = ("empty", "new_empty", "resize")
"""Starts of names of operators whose results hold whatever was in memory."""
STEPS = {
    "ceil",
    "floor",
    "round",
    "trunc",
    "frac",
    "sign",
    "sgn",
    "heaviside",
    "fmod",
    "remainder",
    "floor_divide",
}
"""Operators that jump: a jump under one ULP of the input is no excuse, for they are exact."""
HIDDEN = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var")
)
"""Arguments that an operator writes although its schema does not say so."""
STAGED = re.compile(r"attention|rnn|lstm|gru")
STAGED_ULPS = 4
"""Kernels of several products in a row round what passes between them, which may then cancel. Their
inputs are moved by more. Seen: the gradient of attention's query, at means of twice the deviation,
1.4 times the bound that one ULP gives."""
DIMENSION = {
    "argmax",
    "argmin",
    "max",
    "min",
    "topk",
    "sort",
    "argsort",
    "kthvalue",
    "median",
    "mode",
    "cummax",
    "cummin",
}
POOLS = {"max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3}
POOLS |= {"adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3}
"""Operators that give indices: along a dimension, or into so many last dimensions made flat."""


def operators(body: Callable[[], object], *, draws: int = 2) -> Operators:
    """Run ``body`` and check each operator that it runs, those of its backward pass too.

    Call the model under ``torch.no_grad()`` rather than in inference mode: the arithmetic is the
    same, and composite operators then arrive as the kernels they are made of. What ``body`` changes
    (gradients, running statistics) it changes as without the check. ``draws``: how often the inputs
    of an operator are moved by one ULP for its bound.
    """
    checker = Checker(draws)
    with checker.modules, checker:
        body()
    unchecked = [
        f"{name} ({count} calls): {reason}"
        for (name, reason), count in checker.skipped.most_common()
    ]
    return summed_up(checker.checks, unchecked)


class Checker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each ATen operator below autograd, runs it, and then runs it again in float64.

    Autograd hands the mode on to the threads it starts for a device. The random bits of the moves
    come from a generator of their own, so that the body's own random numbers stay as they are.
    """

    def __init__(self, draws: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws
        self.checks: list[OperatorCheck] = []
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.calls = 0
        self.modules = ModuleTracker()
        self.random = np.random.default_rng(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: Given = (args, kwargs or {})
        self.calls += 1
        if not arithmetic(func, given):
            return func(*args, **given[1])
        if random(func, given):
            self.skipped[short(func), "random"] += 1
            return func(*args, **given[1])
        # What is written to, and what may share its memory, is as it was only before the call.
        before = tree_map(copied, given) if writes(func) else given
        result = func(*args, **given[1])
        with torch.no_grad():
            self.hold(func, before, results(func, given, result))
        return result

    def hold(self, func: Any, before: Given, actual: Results) -> None:
        """Check one call: ``before`` are its arguments before it, ``actual`` what it gave."""
        name = short(func)
        if not any(known(value) for value in actual):
            return
        exact_scalars = jumps(func, actual)
        try:
            expected = wide_results(func, before, exact_scalars)
            draws = 0 if name in STEPS else self.draws
            ulps = STAGED_ULPS if STAGED.search(name) else 1
            moved = [
                wide_results(func, tree_map(partial(self.moved, ulps=ulps), before), exact_scalars)
                for _ in range(draws)
            ]
            self.compare(func, before, actual, expected, moved)
        except (RuntimeError, TypeError) as error:
            self.skipped[name, f"not in float64: {str(error).strip().splitlines()[0]}"] += 1

    def compare(
        self, func: Any, before: Given, actual: Results, expected: Results, moved: list[Results]
    ) -> None:
        """Hold every result of a call against its bound."""
        names = arguments(func, before)
        counts = terms(short(func), names, actual)
        modules = self.modules.parents - {"Global"}
        where = "backward" if self.modules.is_bw else max(modules, key=len, default="")
        node = f"{where} call {self.calls}".strip()
        for place, (value, reference) in enumerate(zip(actual, expected, strict=True)):
            if value is None or reference is None or not value.numel() or not known(value):
                continue
            values = [value, reference, *(draw[place] for draw in moved)]
            if value.dtype == torch.int64:
                # Which of several equal elements an index names is the kernel's choice.
                values = [chosen(short(func), names, index) for index in values[:2]]
            kept = values[0]
            assert kept is not None
            arrays = [numpy(item) for item in values]
            found = judged(
                OperatorCheck(
                    node=node,
                    op=str(func).removesuffix(".default"),
                    output=f"result {place}",
                    error_rms=0.0,
                    limit_rms=0.0,
                    terms=max(1, counts[min(place, len(counts) - 1)]),
                ),
                arrays[0],
                arrays[1],
                arrays[2:],
                kept.dtype,
                loop_of(short(func), names, place, value),
            )
            if found:
                self.checks.append(found)

    def moved(self, value: Any, ulps: int) -> Any:
        """A float tensor with every element ULPs up or down; zeros and what is not finite stay.

        The bits of a float, taken as an integer, are in the order of its magnitude.
        """
        if not isinstance(value, Tensor) or value.dtype not in WIDE:
            return value
        if value.is_complex():
            return torch.view_as_complex(self.moved(torch.view_as_real(value).contiguous(), ulps))
        steps = self.random.integers(0, 2, tuple(value.shape), np.int8) * (2 * ulps) - ulps
        step = torch.from_numpy(np.asarray(steps, np.int8)).to(value.device)
        integers = BITS[value.dtype]
        near = (value.clone().view(integers) + step.to(integers)).view(value.dtype)
        return torch.where((value != 0) & near.isfinite() & value.isfinite(), near, value)


def judged(
    blank: OperatorCheck,
    actual: Array,
    expected: Array,
    moved: Sequence[Array],
    dtype: torch.dtype,
    loop: Array | None = None,
) -> OperatorCheck | None:
    """The check of one result, ``blank`` saying which; None where nothing in it is finite.

    ``loop`` is what a plain loop gives, of a sum.

    Integers and booleans must be equal. What is beyond the narrow ``dtype`` in float64 is Inf
    there. Other masks of NaN or Inf than float64 has count as the largest error there is, and
    ``bound`` names the difference.
    """
    try:
        if actual.dtype.kind != "f":
            error = numerics.rms_error(actual, expected)
            return msgspec.structs.replace(blank, error_rms=error, bound="exact")
        eps = EPSILON[dtype]
        over = np.abs(expected) > torch.finfo(dtype).max * (1 + eps / 4)
        expected = np.where(over, np.copysign(np.inf, expected), expected)
        finite = np.isfinite(expected)
        if finite.any() or np.isfinite(actual).any():
            numerics.rms_error(actual, expected)
            # ``check`` takes the mean of all squares: what is Inf on both sides is left out here.
            kept = [actual[finite], expected[finite], *(draw[finite] for draw in moved)]
            found = check(
                blank.node, blank.op, blank.output, kept[0], kept[1], kept[2:],
                terms=blank.terms, eps=eps, loop=None if loop is None else loop[finite],
            )  # fmt: skip
            # Below the smallest normal number rounding no longer shrinks with the value.
            least = 4.0 * eps * math.sqrt(blank.terms) * torch.finfo(dtype).smallest_normal
            if least > found.limit_rms:
                return msgspec.structs.replace(found, limit_rms=least, bound="subnormal")
            return found
    except numerics.Incomparable as problem:
        return msgspec.structs.replace(blank, error_rms=sys.float_info.max, bound=str(problem))
    return None


def loop_of(name: str, names: Mapping[str, Any], place: int, result: Tensor) -> Array | None:
    """What a plain loop gives for a result that is a sum or a mean over axes of an argument."""
    if name in ("sum", "mean"):
        values = names["self"]
        axes = names.get("dim")
        axes = range(values.dim()) if axes is None or axes == [] else axes
        axes = [axes] if isinstance(axes, int) else [axis % values.dim() for axis in axes]
    elif (name, place) in (("convolution_backward", 2), ("native_batch_norm_backward", 2)):
        values = names.get("grad_output", names.get("grad_out"))
        axes = [0, *range(2, values.dim())]
    else:
        return None
    if values.dtype != torch.float32 or not values.numel():
        return None
    total = looped(values.detach().cpu().numpy(), axes)
    if name == "mean":
        total = total / np.float32(math.prod(values.shape[axis] for axis in axes))
    return np.asarray(total, np.float32).reshape(tuple(result.shape))


def short(func: Any) -> str:
    """``add`` of ``aten.add_.Tensor``."""
    name = str(func).split(".")[1] if "." in str(func) else str(func)
    return name if name.startswith("__") else name.removesuffix("_")


def arithmetic(func: Any, given: Given) -> bool:
    """Whether a call computes something of floats: neither a view nor memory without content."""
    if not isinstance(func, torch._ops.OpOverload) or func.is_view:
        return False
    if short(func).startswith(UNFILLED):
        return False
    return any(isinstance(v, Tensor) and v.dtype.is_floating_point for v in flat(given)) or any(
        isinstance(v, Tensor) and v.is_complex() for v in flat(given)
    )


def random(func: Any, given: Given) -> bool:
    """Whether a call draws random numbers. Attention is tagged so even without its dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    return arguments(func, given).get("dropout_p") != 0.0


def arguments(func: Any, given: Given) -> dict[str, Any]:
    """Every argument by its name in the schema, defaults included."""
    schema = func._schema.arguments
    names = {item.name: item.default_value for item in schema if item.has_default_value()}
    names |= {item.name: value for item, value in zip(schema, given[0], strict=False)}
    return names | given[1]


def written(func: Any) -> list[str]:
    """Names of the arguments that a call changes."""
    schema = func._schema.arguments
    names = [item.name for item in schema if item.alias_info and item.alias_info.is_write]
    return [*names, *HIDDEN.get(short(func), ())]


def writes(func: Any) -> bool:
    return bool(written(func))


def results(func: Any, given: Given, result: Any) -> Results:
    """What a call gave: its results, and the arguments it changed where it does not return them."""
    found: Results = [value if isinstance(value, Tensor) else None for value in flat(result)]
    if any(item.alias_info and item.alias_info.is_write for item in func._schema.returns):
        return found
    names = arguments(func, given)
    return found + [value for name in written(func) for value in flat(names[name])]


def wide_results(func: Any, before: Given, exact_scalars: bool) -> Results:
    """What the same call gives in float64. Raises RuntimeError where no kernel does it."""
    narrow = next(v.dtype for v in flat(before) if isinstance(v, Tensor) and v.dtype in WIDE)
    if short(func).endswith("_backward"):
        # These take their limits in float32, whatever the elements are.
        narrow = torch.float32
    owned = writes(func)

    def widened(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return WIDE.get(value, value)
        if exact_scalars and isinstance(value, float):
            return torch.tensor(value, dtype=narrow).item()
        if not isinstance(value, Tensor):
            return value
        if value.dtype in WIDE:
            return value.to(WIDE[value.dtype])
        return value.clone() if owned else value

    args, kwargs = tree_map(widened, before)
    if reference := REFERENCES.get(short(func)):
        return list(reference(arguments(func, (args, kwargs))))
    if "half_to_float" in arguments(func, (args, kwargs)):
        # The narrow input that this widens is wide already.
        args = tuple(False if value is True else value for value in args)
    return results(func, (args, kwargs), func(*args, **kwargs))


def jumps(func: Any, actual: Results) -> bool:
    """Whether a scalar is compared with elements: then the kernel's rounding of it counts."""
    name = short(func)
    if name in STEPS or any(value is not None and value.dtype == torch.bool for value in actual):
        return True
    return name.endswith("_backward") and not name.startswith("upsample")


def known(value: Tensor | None) -> bool:
    """Whether something can be said of a result: narrow floats, integers and booleans."""
    if value is None or value.layout != torch.strided or value.is_quantized:
        return False
    return value.dtype in WIDE or not (value.dtype.is_floating_point or value.is_complex())


def flat(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def numpy(value: Tensor | None) -> Array:
    """On the host, complex numbers as pairs, and narrow floats in float32, which holds them."""
    assert value is not None
    value = value.detach().resolve_conj().resolve_neg()
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    array: Array = value.cpu().numpy()
    return array


def chosen(name: str, names: Mapping[str, Any], index: Tensor | None) -> Tensor:
    """The elements that an index result names; the index itself where it is none of an input."""
    assert index is not None
    source = next((value for value in names.values() if isinstance(value, Tensor)), index)
    if name in POOLS:
        dims = POOLS[name]
        return source.flatten(-dims).gather(-1, index.flatten(-dims))
    if name not in DIMENSION or not source.is_floating_point():
        return index
    dim = names.get("dim")
    if dim is None:
        return source.flatten()[index.flatten()]
    if not source.dim():
        return source
    whole = index.dim() == source.dim()
    return source.gather(dim, index if whole else index.unsqueeze(dim))


def terms(name: str, names: Mapping[str, Any], found: Results) -> list[int]:
    """K, how many terms one element of each result sums; the last count serves all that follow.

    What is not in a table reduces its largest input to its result, or works element by element.
    """
    if (rule := TERMS.get(name)) is not None:
        return list(rule(names))
    sizes = [v.numel() for v in flat(dict(names)) if isinstance(v, Tensor)]
    largest = max(sizes, default=1)
    if name.startswith(("_foreach", "_fused", "_amp")):
        return [1]
    return [
        largest // value.numel() if value is not None and value.numel() else 1 for value in found
    ]


def size(value: Any, *dims: int) -> int:
    """Elements of a shape along ``dims``, or of all of them."""
    shape = tuple(value.shape)
    return math.prod(shape[dim] for dim in dims) if dims else math.prod(shape)


def inner(left: str) -> Callable[[Mapping[str, Any]], list[int]]:
    """A product sums along the last dimension of ``left``, and adds one more."""
    return lambda names: [size(names[left], -1) + 1]


def along(first: str) -> Callable[[Mapping[str, Any]], list[int]]:
    """A softmax or scan sums along ``dim`` of ``first``."""

    def rule(names: Mapping[str, Any]) -> list[int]:
        value = names[first]
        return [size(value, names["dim"]) if value.dim() else 1]

    return rule


def per_channel(first: str) -> Callable[[Mapping[str, Any]], list[int]]:
    """Batch norm: statistics over all dimensions but the second."""
    return lambda names: [size(names[first]) // size(names[first], 1)]


def convolution(names: Mapping[str, Any]) -> list[int]:
    """Input channels of a group times the kernel's extent, and the bias."""
    weight = names["weight"]
    return [size(weight) // size(weight, 1 if names["transposed"] else 0) + 1]


def convolution_backward(names: Mapping[str, Any]) -> list[int]:
    """Of input, weight and bias; the weight's sums over the batch and all places."""
    weight, gradient, given = names["weight"], names["grad_output"], names["input"]
    channels = names["groups"] if not names["transposed"] else 1
    outputs = size(weight) // size(weight, 0 if names["transposed"] else 1) // channels
    places = given if names["transposed"] else gradient
    over = (size(places) // max(1, size(places, 1)), size(gradient) // max(1, size(gradient, 1)))
    return [outputs, *over]


def window(names: Mapping[str, Any]) -> list[int]:
    return [math.prod(names["kernel_size"])]


def attention(names: Mapping[str, Any]) -> list[int]:
    """The larger of head dimension and sequence."""
    return [max(size(names[part], -2) for part in ("query", "key")) + size(names["query"], -1)]


def recurrent(names: Mapping[str, Any]) -> list[int]:
    """Steps times what a gate sums; of weights, steps times the batch."""
    steps, batch, inputs = names["input"].shape
    return [steps * max(inputs + 4 * names["hidden_size"], batch)]


def most_common(indices: Tensor) -> int:
    """How often the index that is there most often is there."""
    return int(torch.bincount(indices.flatten()).max())


def group_norm(names: Mapping[str, Any]) -> list[int]:
    group = size(names["input"]) // (names["N"] * names["group"])
    return [max(group, names["N"] * names["HxW"])]


def layer_norm(names: Mapping[str, Any]) -> list[int]:
    """The normalized extent; of the gradients of weight and bias, all rows."""
    extent = math.prod(names["normalized_shape"])
    rows = size(names["input"]) // max(1, extent)
    return [extent, rows, rows] if "grad_out" in names else [extent]


TERMS: dict[str, Callable[[Mapping[str, Any]], Sequence[int]]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm"), inner("self")),
    **dict.fromkeys(("addmm", "_addmm_activation"), inner("mat1")),
    **dict.fromkeys(("baddbmm",), inner("batch1")),
    "addmv": inner("mat"),
    "linear": inner("input"),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "_safe_softmax"),
        along("self"),
    ),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), along("output")),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
         "_native_batch_norm_legit_no_training", "native_batch_norm_backward",
         "cudnn_batch_norm_backward", "_batch_norm_with_update", "batch_norm_backward"),
        per_channel("input"),
    ),
    **dict.fromkeys(
        ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm",
         "_fused_rms_norm_backward"),
        layer_norm,
    ),
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), group_norm),
    **dict.fromkeys(
        ("avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward",
         "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
        window,
    ),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
         "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_flash_attention_for_cpu_backward",
         "_scaled_dot_product_flash_attention_backward",
         "_scaled_dot_product_efficient_attention_backward"),
        attention,
    ),
    **dict.fromkeys(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), recurrent),
    "embedding_dense_backward": lambda names: [most_common(names["indices"])],
    **dict.fromkeys(("index_add", "scatter_add"), lambda names: [size(names["index"])]),
    "index_put": lambda names: [size(names["values"]) if names["accumulate"] else 1],
    **dict.fromkeys(("upsample_bilinear2d", "_upsample_bilinear2d_aa"), lambda names: [4]),
    "upsample_bicubic2d": lambda names: [16],
    "_cdist_forward": inner("x1"),
    **dict.fromkeys(
        ("_fft_r2c", "_fft_c2c", "_fft_c2r"),
        lambda names: [size(names["self"], *names["dim"])],
    ),
}  # fmt: skip


def lstm(names: Mapping[str, Any]) -> Iterator[Tensor | None]:
    """One layer in one direction, which oneDNN has in float32 only. Its workspace is not checked.

    Raises RuntimeError for another cell than an LSTM's.
    """
    if names["mode"] != 2:
        raise RuntimeError("only the LSTM of oneDNN has a float64 reference here")
    steps = names["input"].flip(0) if names["reverse"] else names["input"]
    weights = [value for key, value in names.items() if key.startswith("weight")]
    cell = names["cx_"] if "cx_" in names else names["cx_tmp"]
    biased = names["has_biases"]
    output, *state = torch.lstm(
        steps,
        (names["hx_"].unsqueeze(0), cell.unsqueeze(0)),
        weights[: 4 if biased else 2],
        biased,
        1,
        0.0,
        False,
        False,
        False,
    )
    yield output.flip(0) if names["reverse"] else output
    yield from (value.squeeze(0) for value in state)
    yield None


def lstm_backward(names: Mapping[str, Any]) -> list[Tensor | None]:
    """The gradients of ``lstm``, by autograd.

    In a thread of its own: where the mode calls, below autograd, nothing would be recorded.
    """

    def gradients() -> list[Tensor | None]:
        with torch.enable_grad():
            weights = [f"weight{k}" for k in (1, 2, 3, 4)]
            keys = ["input", *weights, "hx_", "cx_tmp"]
            leaves = {key: names[key].detach().clone().requires_grad_() for key in keys}
            values = [value for value in lstm({**names, **leaves}) if value is not None]
            grads = [names[key] for key in ("grad_output", "grad_hy", "grad_cy")]
            pairs = [
                (value, grad.reshape(value.shape))
                for value, grad in zip(values, grads, strict=True)
                if grad is not None
            ]
            return list(
                torch.autograd.grad(
                    [value for value, _ in pairs],
                    list(leaves.values()),
                    [grad for _, grad in pairs],
                    allow_unused=True,
                )
            )

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(gradients).result()


REFERENCES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "mkldnn_rnn_layer": lstm,
    "mkldnn_rnn_layer_backward": lstm_backward,
}
"""Float64 for operators without such a kernel."""
