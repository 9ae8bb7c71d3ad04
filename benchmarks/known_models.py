"""Are vgg and residual as quick as torchvision's and keras.applications' own?

    pip install --no-deps --target DIR torchvision==0.28.0
    .venv/bin/python -m benchmarks.known_models torch --torchvision DIR [--rounds 15]
    .venv/bin/python -m benchmarks.known_models tf [--rounds 15]

Full size, both phases, the same parameters, inputs and optimizer on both sides, in one process, in
turn, whoever was second going first in the next round. Each pair is also held to compute the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from xbench import bench, draws, environment, registry
from xbench.spec import ModelSpec

LIMIT = 1.03
"""Claimed of our time over theirs."""
BATCH = {"vgg": 2, "residual": 4}
"""Small enough that many rounds fit into minutes; the work per image is the published one."""

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

Body = Callable[[], Any]


def main() -> int:
    """Print the ratios; 1 where one is beyond the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=("torch", "tf"))
    parser.add_argument("--torchvision", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.framework == "torch":
        sys.path.append(options.torchvision or ".")
        pairs = {name: torch_pair(registry.model(name)) for name in BATCH}
    else:
        pairs = {"vgg": keras_pair(registry.model("vgg"))}
    beyond = False
    for name, phases in pairs.items():
        for phase, (ours, theirs) in phases.items():
            ratio, seconds = compared(ours, theirs, options.rounds)
            beyond = beyond or ratio > LIMIT
            print(
                f"{options.framework} {name} full, {phase}, batch {BATCH[name]}: {ratio:.3f} of "
                f"their time, median of {options.rounds} rounds; ours {seconds:.3f} s",
                flush=True,
            )
    print(f"claim: at most {LIMIT}")
    return 1 if beyond else 0


def compared(ours: Body, theirs: Body, rounds: int) -> tuple[float, float]:
    """The median of the ratios of neighbours, and the median of our seconds."""
    ratios, seconds = [], []
    ours(), theirs()
    for round_ in range(rounds):
        times = {}
        for body in (ours, theirs) if round_ % 2 else (theirs, ours):
            times[body] = bench.timed(body)
        ratios.append(times[ours] / times[theirs])
        seconds.append(times[ours])
    return statistics.median(ratios), statistics.median(seconds)


def arrays(spec: ModelSpec) -> tuple[dict[str, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Parameters at full size, a batch of images (canonical layout) and their labels."""
    load = registry.model_part(spec.name, "data").load
    (batch,) = load(
        spec.sizes["full"], batch=BATCH[spec.name], count=1, seed=0, source="photographs"
    ).inputs
    return draws.parameters(spec, "full", "init", 0), batch["image"], batch["label"]


def torch_pair(spec: ModelSpec) -> dict[str, tuple[Body, Body]]:
    """Our model and torchvision's, inference and a training step of each."""
    import torch

    # Its operators for detection need registrations that a build of torch without CUDA lacks.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")
    import torchvision
    from torch.nn import functional

    from xbench.runners import pt_optimizers

    torch.set_num_threads(environment.usable_cpus())
    known = {"vgg": torchvision.models.vgg19, "residual": torchvision.models.resnet34}
    parameters, image, label = arrays(spec)
    x, y = torch.from_numpy(image), torch.from_numpy(label)
    ours = registry.model_part(spec.name, "pt").build(spec.sizes["full"])
    ours.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    theirs = known[spec.name]()
    take_over(theirs, ours)
    ours.eval(), theirs.eval()
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-4)

    def infer(model: torch.nn.Module) -> Body:
        def body() -> Any:
            model.eval()
            with torch.inference_mode():
                return model(x)

        return body

    def train(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Body:
        optimizer = pt_optimizers.make(spec.optimizer, model.parameters())

        def body() -> None:
            model.train()
            optimizer.zero_grad(set_to_none=True)
            loss().backward()
            optimizer.step()

        return body

    return {
        "infer": (infer(ours), infer(theirs)),
        "train": (
            train(ours, lambda: ours.objective(image=x, label=y, loss=spec.losses[0])),
            train(theirs, lambda: functional.cross_entropy(theirs(x), y)),
        ),
    }


def take_over(theirs: Any, ours: Any) -> None:
    """Give ``theirs`` the state of ``ours``: tensors of one shape, in the order of both."""
    queues: dict[tuple[int, ...], list[Any]] = {}
    for name, tensor in ours.state_dict().items():
        queues.setdefault((*tensor.shape, hash(name.rpartition(".")[2])), []).append(tensor)
    state = theirs.state_dict()
    for name, tensor in state.items():
        part = name.rpartition(".")[2]
        if part != "num_batches_tracked":
            tensor.copy_(queues[(*tensor.shape, hash(part))].pop(0))
    assert not any(queues.values()), "the networks have other tensors"


def keras_pair(spec: ModelSpec) -> dict[str, tuple[Body, Body]]:
    """Our model and keras.applications', inference and a training step of each."""
    import tensorflow as tf

    from xbench.models import layers_tf
    from xbench.runners import tf_optimizers

    tf.config.threading.set_intra_op_parallelism_threads(environment.usable_cpus())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    parameters, image, label = arrays(spec)
    config = spec.sizes["full"]
    specs = {item.name: item for item in spec.parameters(config)}
    x = tf.constant(np.ascontiguousarray(image.transpose(0, 2, 3, 1)))
    y = tf.constant(label)
    variables = {
        name: tf.Variable(np.ascontiguousarray(specs[name].to_tf(value)))
        for name, value in parameters.items()
    }
    ours = registry.model_part(spec.name, "tf").build(config, variables)
    theirs = tf.keras.applications.VGG19(weights=None, classifier_activation=None)
    values = list(variables.values())
    for mine, other in zip(values, theirs.trainable_variables, strict=True):
        fc6 = mine.shape[0] == 25088
        # Ours counts the features channels first, as PyTorch does.
        side = tf.transpose(tf.reshape(mine, [512, 7, 7, -1]), [1, 2, 0, 3]) if fc6 else mine
        other.assign(tf.reshape(side, other.shape))
    outputs = [model(x) for model in (ours, theirs)]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)

    def compiled(body: Callable[[], Any]) -> Body:
        return tf.function(body, autograph=False)  # type: ignore[no-any-return]

    def train(held: list[Any], loss: Callable[[], Any]) -> Body:
        optimizer = tf_optimizers.make(spec.optimizer, held)

        def step() -> Any:
            with tf.GradientTape() as tape:
                value = loss()
            optimizer.apply(tape.gradient(value, held))
            return value

        return compiled(step)

    return {
        "infer": (compiled(lambda: ours(x)), compiled(lambda: theirs(x, training=False))),
        "train": (
            train(values, lambda: ours.objective(x, y, loss=spec.losses[0])),
            train(
                theirs.trainable_variables,
                lambda: layers_tf.cross_entropy(theirs(x, training=True), y),
            ),
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
