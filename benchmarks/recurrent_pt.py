"""Are speech and seq2seq as quick in PyTorch as what one would write first?

    .venv/bin/python -m benchmarks.recurrent_pt [--size small] [--rounds 40]

Theirs is ``nn.RNN`` (which cannot clip) and ``nn.LSTM`` with ``nn.LSTMCell``. Both sides have the
same parameters, inputs, loss and optimizer and are run in one process, in turn. Each pair is also
held to compute the same, before anything is trained and where no unit reaches the clip.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.known_models import LIMIT, Body, compared
from xbench import draws, environment, registry
from xbench.models.seq2seq import GO
from xbench.models.seq2seq import pt as seq2seq
from xbench.models.speech import BLANK, BOUND
from xbench.models.speech import pt as speech
from xbench.runners import pt_optimizers
from xbench.spec import ModelSpec


class Speech(speech.DeepSpeech):
    """Deep Speech whose recurrent layer is ``nn.RNN``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rnn = nn.RNN(config.hidden, config.hidden, nonlinearity="relu", bidirectional=True)

    def take_over(self) -> None:
        """Give ``rnn`` the parameters of the layer that it stands for."""
        layer, rnn = self.layer4, self.rnn
        for way, recurrence in (("", layer.weight_hh), ("_reverse", layer.weight_hh_reverse)):
            state = {
                "weight_ih_l0": layer.weight_ih,
                "weight_hh_l0": recurrence,
                "bias_ih_l0": layer.bias,
                "bias_hh_l0": torch.zeros_like(layer.bias),
            }
            for name, value in state.items():
                getattr(rnn, f"{name}{way}").data.copy_(value.data)
        del self.layer4

    def logits(self, features: Tensor) -> Tensor:
        x = self.windows(features.transpose(0, 1))
        for layer in (self.layer1, self.layer2, self.layer3):
            x = layer(x).clamp(0.0, BOUND)
        forward, backward = self.rnn(x)[0].chunk(2, dim=2)
        found: Tensor = self.output(self.layer5(forward + backward).clamp(0.0, BOUND))
        return found

    def objective(
        self, features: Tensor, frames: Tensor, label: Tensor, label_length: Tensor, loss: str = ""
    ) -> Tensor:
        log_p = F.log_softmax(self.logits(features), dim=2)
        return F.ctc_loss(log_p, label, frames, label_length, BLANK, reduction="none").mean()


class Seq2Seq(seq2seq.Seq2Seq):
    """Translation whose decoder is a list of ``nn.LSTMCell``, word by word, in training too."""

    def take_over(self) -> None:
        """Make cells of the parameters of the layers that they stand for."""
        self.cells = nn.ModuleList()
        for weights in (*self.decoder.all_weights, *self.upper.all_weights):
            cell = nn.LSTMCell(weights[0].shape[1], weights[1].shape[1])
            cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh = weights
            self.cells.append(cell)

    def word(self, memory: Any, embedded: Tensor, h: list[Tensor], c: list[Tensor]) -> Tensor:
        """The last layer after one word more; ``h`` and ``c`` are changed."""
        energies = self.score(torch.tanh(memory.keys + self.query(h[0]).unsqueeze(1))).squeeze(2)
        attention = torch.softmax(energies + memory.mask, dim=1)
        context = torch.bmm(attention.unsqueeze(1), memory.values).squeeze(1)
        x = torch.cat([embedded, context], dim=1)
        for place, cell in enumerate(self.cells):
            h[place], c[place] = cell(x, (h[place], c[place]))
            x = h[place]
        return x

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        memory, h, c = self.encode(source)
        first = torch.full_like(target[:, :1], GO)
        embedded = self.target_words(torch.cat([first, target[:, :-1]], dim=1))
        states, cells = list(h.unbind()), list(c.unbind())
        steps = [self.word(memory, now, states, cells) for now in embedded.unbind(1)]
        return torch.stack(steps).flatten(0, 1)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        memory, h, c = self.encode(source)
        states, cells = list(h.unbind()), list(c.unbind())
        token = torch.full_like(source[:, 0], GO)
        tokens, scores = [], []
        for _ in range(source.shape[1] + self.config.headroom):
            x = self.word(memory, self.target_words(token), states, cells)
            score, token = F.log_softmax(self.output(x), dim=1).max(dim=1)
            tokens.append(token)
            scores.append(score)
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1)


PAIRS = {"speech": (speech.DeepSpeech, Speech), "seq2seq": (seq2seq.Seq2Seq, Seq2Seq)}


def fed(spec: ModelSpec, size: str) -> dict[str, Tensor]:
    """One batch of the embedded data, with its draws."""
    config, batch = spec.sizes[size], spec.batch[size]
    load = registry.model_part(spec.name, "data").load
    (found,) = load(config, batch=batch, count=1, seed=0, source=None).inputs
    (drawn,) = draws.steps(spec, config, batch=batch, count=1, seed=0)
    return {name: torch.from_numpy(value) for name, value in (found | drawn).items()}


def bodies(
    spec: ModelSpec, model: nn.Module, given: Mapping[str, Tensor], names: list[str]
) -> dict[str, Body]:
    """Inference and a training step."""
    loss = spec.native_losses.get(spec.losses[0], spec.losses[0])
    trained = list(model.parameters())
    optimizer = pt_optimizers.make(spec.optimizer, trained)

    def infer() -> Any:
        with torch.inference_mode():
            return model(*(given[name] for name in names))

    def train() -> Any:
        optimizer.zero_grad(set_to_none=True)
        found = model.objective(**given, loss=loss)  # type: ignore[operator]
        found.backward()
        if spec.clip is not None:
            pt_optimizers.clip(spec.clip, trained)
        optimizer.step()
        return found.detach()

    return {"infer": infer, "train": train}


def main() -> int:
    """Print the ratios; 1 where one is beyond the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(environment.usable_cpus())
    beyond = False
    for name, (ours, theirs) in PAIRS.items():
        spec = registry.model(name)
        given = fed(spec, options.size)
        names = [item.name for item in spec.inputs(spec.sizes[options.size])]
        values = draws.parameters(spec, options.size, "init", 0)
        state = {key: torch.from_numpy(value) for key, value in values.items()}
        sides = []
        for kind in (ours, theirs):
            model = kind(spec.sizes[options.size])
            model.load_state_dict(state, strict=kind is ours)
            if kind is theirs:
                model.take_over()  # type: ignore[operator]
            sides.append(bodies(spec, model, given, names))
        for phase in ("infer", "train"):
            one, other = (side[phase] for side in sides)
            torch.testing.assert_close(one(), other(), rtol=1e-3, atol=1e-4)
            ratio, seconds = compared(one, other, options.rounds)
            beyond = beyond or ratio > LIMIT
            print(
                f"torch {name} {options.size}, {phase}: {ratio:.3f} of their time, median of "
                f"{options.rounds} rounds; ours {seconds * 1e3:.1f} ms",
                flush=True,
            )
    print(f"claim: at most {LIMIT}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
