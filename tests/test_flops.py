"""Floating-point operations of every model, against PyTorch's own count of what it computes.

What that counter does not know of is counted by hand: a matrix times a vector.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from xbench import registry
from xbench.models.flops import conv_flops, dense_flops

COUNT = """
import json, sys
import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula
from xbench import registry
from xbench.models import layers_pt

# Its convolution by a band of ones is how the sums are made, not what the model is.
layers_pt.local_response_norm = lambda x: x


@register_flop_formula(torch.ops.aten.mv)
def matrix_times_vector(matrix, vector, out_shape=None, **_):
    # PyTorch's counter knows products of two matrices only.
    return 2 * matrix[0] * matrix[1]


def count(spec, pt, config):
    # Shapes alone, nothing is computed. So a recurrent layer is the products that it is made of:
    # the CPU has one operator for all of them, which is not counted.
    with torch.device("meta"):
        model = pt.build(config).eval().to("meta")
        inputs = {
            item.name: torch.zeros(item.of(config, 1), dtype=getattr(torch, item.dtype))
            for item in spec.inputs(config)
        }
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**inputs)
    return counter.get_total_flops()


found = {}
for name in sys.argv[1:]:
    spec, pt = registry.model(name), registry.model_part(name, "pt")
    found[name] = {size: count(spec, pt, config) for size, config in spec.sizes.items()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    """What PyTorch counts, by model and size; torch and TensorFlow never share a process."""
    names = [name for name in registry.model_names() if registry.model(name).flops is not None]
    done = subprocess.run(
        [sys.executable, "-P", "-c", COUNT, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", registry.model_names())
def test_the_formula_is_what_pytorch_counts(name: str, counted: dict[str, dict[str, int]]) -> None:
    spec = registry.model(name)
    assert spec.flops is not None, "every model says how much it computes"
    assert {size: spec.flops(config) for size, config in spec.sizes.items()} == counted[name]
    assert all(number > 0 for number in counted[name].values())


def test_the_published_networks_take_what_is_known_of_them() -> None:
    """The papers' own figures, which count a multiplication with its addition as one."""

    def of(name: str, size: str) -> float:
        spec = registry.model(name)
        assert spec.flops is not None
        return spec.flops(spec.sizes[size]) / 2

    # He et al. 2015, table 1: 3.6e9 for 34 layers, 11.3e9 for 152, with the 3x3 at stride 1.
    assert of("residual", "full") == pytest.approx(3.6e9, rel=0.03)
    assert of("residual", "deep") == pytest.approx(11.3e9, rel=0.03)
    assert of("vgg", "full") == pytest.approx(19.6e9, rel=0.01)


def test_the_helpers() -> None:
    assert dense_flops(3, 5) == 30
    assert conv_flops(4, 2, 3, 10) == 2 * 4 * 2 * 9 * 10
    assert conv_flops(4, 2, 1, 1) == dense_flops(4, 2)


def test_what_runs_as_one_operator_is_counted_by_its_formula(
    counted: dict[str, dict[str, int]],
) -> None:
    """By hand, from the papers' equations: had the counter missed a recurrence, it would show."""

    def dense(out: int, inputs: int) -> int:
        return 2 * out * inputs

    for size, config in registry.model("speech").sizes.items():
        window = (2 * config.context + 1) * config.features
        frame = dense(config.hidden, window) + 2 * dense(config.hidden, config.hidden)
        if config.recurrent:  # Its input, one product for each direction, and the layer above.
            frame += 4 * dense(config.hidden, config.hidden)
        frame += dense(29, config.hidden)
        assert counted["speech"][size] == config.time * frame

    for size, config in registry.model("seq2seq").sizes.items():
        hidden, target = config.hidden, config.source_length + config.headroom
        # Four gates of each layer read what is below and what was before.
        above = (config.layers - 1) * dense(4 * hidden, 2 * hidden)
        read = dense(4 * hidden, config.embedding + hidden) + above
        read += dense(hidden, hidden)  # U s, once for each word
        said = dense(4 * hidden, config.embedding + 2 * hidden) + above
        said += dense(hidden, hidden)  # W h
        said += config.source_length * (dense(1, hidden) + dense(hidden, 1))
        said += dense(config.vocabulary, hidden)
        assert counted["seq2seq"][size] == config.source_length * read + target * said
