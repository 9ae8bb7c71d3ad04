"""Deep Speech in PyTorch: time first inside, so that a recurrence reads what lies together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.recurrent_pt import ClippedRNN
from xbench.models.speech import ALPHABET, BLANK, BOUND, RECURRENT, Config
from xbench.models.speech.ctc_pt import ctc


class DeepSpeech(nn.Module):
    """Features (batch, time, features) -> logits of blank and letters (batch, time, 29)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        for name, inputs in config.layers.items():
            recurrent = name == RECURRENT
            layer = ClippedRNN(inputs, hidden, BOUND) if recurrent else nn.Linear(inputs, hidden)
            self.add_module(name, layer)
        self.output = nn.Linear(config.hidden, len(ALPHABET))

    def hidden(self, features: Tensor) -> dict[str, Tensor]:
        """Every layer but the last, (time, batch, hidden)."""
        found: dict[str, Tensor] = {}
        x = self.windows(features.transpose(0, 1))
        for name in self.config.layers:
            x = getattr(self, name)(x)
            found[name] = x = x if name == RECURRENT else F.hardtanh(x, 0.0, BOUND)
        return found

    def windows(self, features: Tensor) -> Tensor:
        """Each frame with those beside it, the earliest first; beyond the ends they are zero.

        (time, batch, features) -> (time, batch, window).
        """
        time, context = features.shape[0], self.config.context
        padded = F.pad(features, (0, 0, 0, 0, context, context))
        return torch.cat([padded[k : k + time] for k in range(2 * context + 1)], dim=2)

    def logits(self, features: Tensor) -> Tensor:
        """(time, batch, 29)."""
        *_, last = self.hidden(features).values()
        found: Tensor = self.output(last)
        return found

    def forward(self, features: Tensor) -> Tensor:
        return self.logits(features).transpose(0, 1)

    def objective(
        self,
        features: Tensor,
        frames: Tensor,
        label: Tensor,
        label_length: Tensor,
        loss: str = "ctc",
    ) -> Tensor:
        """The mean over the batch of -log p(label | features), in single precision at least."""
        logits = self.logits(features)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses: Tensor
        if loss == "ctc":
            losses = ctc(logits, frames, label, label_length)
        else:
            log_p = F.log_softmax(logits, dim=2)
            losses = F.ctc_loss(log_p, label, frames, label_length, blank=BLANK, reduction="none")
        return losses.mean()

    def taps(self, features: Tensor) -> dict[str, Tensor]:
        """The landmarks by their names in ``SPEC.taps``, (batch, time, hidden)."""
        return {name: value.transpose(0, 1) for name, value in self.hidden(features).items()}


def build(config: Config) -> DeepSpeech:
    return DeepSpeech(config)
