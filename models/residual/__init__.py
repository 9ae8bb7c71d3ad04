"""Residual networks (He, Zhang, Ren & Sun 2015, arXiv 1512.03385): classification of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xbench.models import layers
from xbench.models.flops import conv_flops, dense_flops
from xbench.spec import SGD, ModelSpec, Normal, ParameterSpec, TensorSpec, Uniform

STEM_SIZE = 7
"""Edge of the first kernel."""
BOTTLENECK_EXPANSION = 4
"""Channels that leave a bottleneck, over those of its 3x3 convolution."""
PROBE_INNER = Uniform(0.5, 1.5)
"""Probe range of the scale of a normalisation that a ReLU follows at once."""
PROBE_BRANCH = Uniform(0.2, 0.5)
"""Probe range of the scale of what a block adds: 16 sums in a row must not explode."""
PROBE_SHORTCUT = Uniform(0.5, 1.0)
"""Probe range of the scale of a projection: it carries all that came before."""


@dataclass(frozen=True, slots=True)
class Block:
    """Two or three convolutions and what goes past them. ``name`` is as in ``stage2.block1``.

    ``width`` is the channels within; ``stride`` that of the block, which makes (side, side) of
    ``outputs`` channels.
    """

    name: str
    inputs: int
    width: int
    outputs: int
    stride: int
    side: int

    @property
    def projects(self) -> bool:
        """Whether the shape changes, so that the shortcut is a convolution (option B)."""
        return self.stride != 1 or self.inputs != self.outputs

    def kernels(self, bottleneck: bool) -> list[tuple[int, int, int]]:
        """Outputs, inputs and size of its convolutions, in order, the shortcut's left out."""
        inputs, width, outputs = self.inputs, self.width, self.outputs
        if bottleneck:
            return [(width, inputs, 1), (width, width, 3), (outputs, width, 1)]
        return [(width, inputs, 3), (outputs, width, 3)]


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters. ``blocks`` and ``channels`` per stage; the stem has ``channels[0]``.

    A block is two 3x3 convolutions, or with ``bottleneck`` 1x1, 3x3 and 1x1.
    """

    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    side: int
    classes: int
    bottleneck: bool = False

    @property
    def stem_side(self) -> int:
        """Edge of what leaves the stem, which halves twice, rounding up."""
        return (self.side + 3) // 4

    @property
    def features(self) -> int:
        """Channels of the last block."""
        return self.channels[-1] * (BOTTLENECK_EXPANSION if self.bottleneck else 1)

    def plan(self) -> Iterator[Block]:
        """Every block in order. The first of each stage but the first one halves the side."""
        inputs, side = self.channels[0], self.stem_side
        stages = zip(self.blocks, self.channels, strict=True)
        for stage, (count, width) in enumerate(stages, start=1):
            outputs = width * (BOTTLENECK_EXPANSION if self.bottleneck else 1)
            for number in range(1, count + 1):
                stride = 2 if stage > 1 and number == 1 else 1
                side = (side + stride - 1) // stride
                name = f"stage{stage}.block{number}"
                yield Block(name, inputs, width, outputs, stride, side)
                inputs = outputs


def _conv(conv: str, norm: str, out: int, inputs: int, size: int, scale: Uniform) -> layers.Specs:
    """A convolution without bias and its normalisation, whose probe scale is from ``scale``."""
    return (
        *layers.conv(conv, out, inputs, size, layers.he_normal, bias=None),
        *layers.batch_norm(norm, out, weight=scale),
    )


def _block(block: Block, bottleneck: bool) -> layers.Specs:
    """Parameters of one block, the shortcut last."""
    inputs, outputs = block.inputs, block.outputs
    shapes = block.kernels(bottleneck)
    specs: list[ParameterSpec] = []
    for number, (out, into, size) in enumerate(shapes, start=1):
        scale = PROBE_BRANCH if number == len(shapes) else PROBE_INNER
        names = f"{block.name}.conv{number}", f"{block.name}.norm{number}"
        specs += _conv(*names, out, into, size, scale)
    if block.projects:
        names = f"{block.name}.shortcut.conv", f"{block.name}.shortcut.norm"
        specs += _conv(*names, outputs, inputs, 1, PROBE_SHORTCUT)
    return tuple(specs)


def _classifier(fan_in: int, fan_out: int) -> Normal:
    """Small, so that training begins near equal probabilities."""
    return Normal(std=0.01)


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """All parameters, in order of computation."""
    specs = list(_conv("stem.conv", "stem.norm", config.channels[0], 3, STEM_SIZE, PROBE_INNER))
    for block in config.plan():
        specs += _block(block, config.bottleneck)
    specs += layers.dense("fc", config.classes, config.features, _classifier)
    return tuple(specs)


def inputs(config: Config) -> tuple[TensorSpec, ...]:
    return (layers.picture("image", 3, config.side),)


def targets(config: Config) -> tuple[TensorSpec, ...]:
    return (layers.LABEL,)


def outputs(config: Config) -> tuple[TensorSpec, ...]:
    return (TensorSpec("logits", ("batch", config.classes)),)


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """What leaves the stem (pooled), every block, and the average over all places."""
    return (
        layers.picture("stem", config.channels[0], config.stem_side),
        *(layers.picture(block.name, block.outputs, block.side) for block in config.plan()),
        TensorSpec("pooled", ("batch", config.features)),
    )


def flops(config: Config) -> int:
    """The stem before its pool, the convolutions of every block, and the classifier."""
    total = conv_flops(config.channels[0], 3, STEM_SIZE, ((config.side + 1) // 2) ** 2)
    for block in config.plan():
        places = block.side**2
        for out, inputs, size in block.kernels(config.bottleneck):
            total += conv_flops(out, inputs, size, places)
        if block.projects:
            total += conv_flops(block.outputs, block.inputs, 1, places)
    return total + dense_flops(config.classes, config.features)


SPEC = ModelSpec(
    name="residual",
    title="Residual network: ResNet-34, and ResNet-152 at the size deep",
    paper="He, Zhang, Ren & Sun 2015, arXiv 1512.03385",
    sizes={
        "tiny": Config(blocks=(3, 4, 6, 3), channels=(8, 16, 32, 64), side=64, classes=10),
        "small": Config(blocks=(3, 4, 6, 3), channels=(16, 32, 64, 128), side=64, classes=10),
        "full": Config(blocks=(3, 4, 6, 3), channels=(64, 128, 256, 512), side=224, classes=1000),
        "deep": Config(
            blocks=(3, 8, 36, 3),
            channels=(64, 128, 256, 512),
            side=224,
            classes=1000,
            bottleneck=True,
        ),
    },
    batch={"tiny": 4, "small": 16, "full": 16, "deep": 4},
    parameters=parameters,
    inputs=inputs,
    targets=targets,
    outputs=outputs,
    taps=taps,
    losses=("cross-entropy",),
    optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
    data="crops of the photographs that scikit-image and scikit-learn ship",
    flops=flops,
)
