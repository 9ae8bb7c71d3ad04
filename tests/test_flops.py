"""Floating-point operations of every model, against PyTorch's own count of what it computes."""

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
from torch.utils.flop_counter import FlopCounterMode
from xbench import registry
from xbench.models import layers_pt

# Its convolution by a band of ones is how the sums are made, not what the model is.
layers_pt.local_response_norm = lambda x: x


def count(model, inputs):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return counter.get_total_flops()


found = {}
for name in sys.argv[1:]:
    spec, pt = registry.model(name), registry.model_part(name, "pt")
    tiny = spec.sizes["tiny"]
    data = registry.model_part(name, "data").load(tiny, batch=1, count=1, seed=0, source=None)
    names = [item.name for item in spec.inputs(tiny)]
    inputs = {key: torch.as_tensor(data.inputs[0][key]) for key in names}
    double = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    found[name] = {"tiny": count(pt.build(tiny).double().eval(), double)}
    for size in [size for size in spec.sizes if size != "tiny"]:
        config = spec.sizes[size]
        with torch.device("meta"):  # Shapes alone: nothing is computed.
            model = pt.build(config).eval()
            shapes = {item.name: item.of(config, 1) for item in spec.inputs(config)}
            like = {key: torch.zeros(shapes[key], dtype=inputs[key].dtype) for key in names}
        found[name][size] = count(model, like)
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
