"""Deep Speech (Hannun et al. 2014, arXiv 1412.5567): letters from the sound of speech."""

from __future__ import annotations

from dataclasses import dataclass

from xbench.models import layers
from xbench.models.flops import dense_flops
from xbench.spec import SGD, ModelSpec, ParameterSpec, TensorSpec

ALPHABET = ("blank", " ", "'", *"abcdefghijklmnopqrstuvwxyz")
"""What a frame can show, by id: nothing new, or a letter."""
BLANK = 0
"""The id that stands for no letter, and parts two equal ones."""
NEVER = -1e30
"""Stands for the logarithm of zero in the CTC loss: that of any real sum of paths is far above."""
RECURRENT = "layer4"
"""The one layer that is recurrent (section 2)."""
BOUND = 20.0
"""Where every ReLU is clipped (section 2)."""
PROBE_FIRST = 8.0
"""Probe gain of the first layer: so large that some units of every layer reach ``BOUND``."""
PROBE_OUTPUT = 0.3
"""Probe gain of the last layer: no letter is certain."""


@dataclass(frozen=True, slots=True)
class Config:
    """Hyper-parameters: ``features`` of each frame, and ``context`` frames on either side of it.

    Recordings have up to ``time`` frames and ``letters`` letters. Without ``recurrent`` the last
    layer follows the third.
    """

    features: int
    hidden: int
    time: int
    letters: int
    context: int = 5
    recurrent: bool = True

    @property
    def window(self) -> int:
        """Features that the first layer sees of one frame and those beside it."""
        return (2 * self.context + 1) * self.features

    @property
    def layers(self) -> dict[str, int]:
        """Inputs of every layer but the last, by name, in order; ``hidden`` units leave each."""
        names = (
            ["layer2", "layer3", RECURRENT, "layer5"] if self.recurrent else ["layer2", "layer3"]
        )
        return {"layer1": self.window} | dict.fromkeys(names, self.hidden)


def parameters(config: Config) -> tuple[ParameterSpec, ...]:
    """All parameters, in order of computation."""
    specs: list[ParameterSpec] = []
    for name, inputs in config.layers.items():
        if name == RECURRENT:
            specs += layers.rnn(name, config.hidden, inputs, layers.glorot_uniform)
            continue
        gain = PROBE_FIRST if name == "layer1" else layers.RELU_GAIN
        specs += layers.dense(name, config.hidden, inputs, layers.glorot_uniform, gain=gain)
    last = "output", len(ALPHABET), config.hidden, layers.glorot_uniform
    return (*specs, *layers.dense(*last, gain=PROBE_OUTPUT))


def sequence(name: str, size: int) -> TensorSpec:
    """``size`` values of every frame."""
    return TensorSpec(name, ("batch", "time", size))


def targets(config: Config) -> tuple[TensorSpec, ...]:
    """How many frames of each item are real, its letters, filled up with zeros, and their count."""
    return (
        TensorSpec("frames", ("batch",), dtype="int64"),
        TensorSpec("label", ("batch", config.letters), dtype="int64"),
        TensorSpec("label_length", ("batch",), dtype="int64"),
    )


def taps(config: Config) -> tuple[TensorSpec, ...]:
    """Every layer but the last, after its clipped ReLU; of the recurrent one both ways' sum."""
    return tuple(sequence(name, config.hidden) for name in config.layers)


def flops(config: Config) -> int:
    """All layers on every frame; the recurrent one has a product for each way besides its input."""
    frame = sum(dense_flops(config.hidden, inputs) for inputs in config.layers.values())
    if config.recurrent:
        frame += 2 * dense_flops(config.hidden, config.hidden)
    return config.time * (frame + dense_flops(len(ALPHABET), config.hidden))


FULL = Config(features=81, hidden=2048, time=500, letters=200)

SPEC = ModelSpec(
    name="speech",
    title="Deep Speech: letters from the sound of speech",
    paper="Hannun et al. 2014, arXiv 1412.5567",
    sizes={
        "tiny": Config(features=21, hidden=32, time=64, letters=24),
        "small": Config(features=41, hidden=256, time=128, letters=48),
        "full": FULL,
        "as-published": Config(features=81, hidden=2048, time=500, letters=200, recurrent=False),
    },
    batch={"tiny": 4, "small": 16, "full": 32, "as-published": 32},
    parameters=parameters,
    inputs=lambda config: (sequence("features", config.features),),
    targets=targets,
    outputs=lambda config: (sequence("logits", len(ALPHABET)),),
    taps=taps,
    losses=("ctc", "ctc-native"),
    native_losses={"ctc": "ctc-native"},
    optimizer=SGD(lr=1e-4, momentum=0.99, nesterov=True),
    data="sentences spoken by eSpeak NG",
    lengths=("time",),
    flops=flops,
)
