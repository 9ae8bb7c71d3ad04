"""Connectionist temporal classification (Graves et al. 2006) in plain operators of PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xbench.models.speech import BLANK, NEVER


# torch.compile would unroll the loop over time, which takes minutes.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def ctc(logits: Tensor, frames: Tensor, label: Tensor, label_length: Tensor) -> Tensor:
    """-log p(label | logits) of each item, (batch,); infinite where no path spells the label.

    ``logits`` are (time, batch, letters). Of an item the first ``frames`` count, at least one, and
    the first ``label_length`` ids of its row of ``label`` (batch, most letters).

    A path goes through states: blank, letter, blank, letter, ..., blank. At every frame it stays,
    goes on by one, or by two past a blank between letters that differ. ``alpha`` holds, for each
    state, the logarithm of the sum over all paths that have come there (section 4.1, eq. 5 to 8),
    or about NEVER where there is none, which leaves every gradient a number.
    """
    log_p = F.log_softmax(logits, dim=2)
    batch, letters = label.shape
    states = label.new_full((batch, 2 * letters + 1), BLANK)
    states[:, 1::2] = label
    shown = log_p.gather(2, states.expand(len(logits), -1, -1))
    passes = (states != BLANK) & (states != F.pad(states, (2, 0), value=BLANK)[:, :-2])
    passing = torch.zeros_like(shown[0]).masked_fill(~passes, NEVER)
    # Two states before the first: every path comes from the second of them.
    never = torch.full_like(shown[0, :, :2], NEVER)
    alpha = F.pad(torch.zeros_like(never[:, :1]), (1, 2 * letters + 1), value=NEVER)
    alphas = []
    for now in shown.unbind():
        stay_or_go = torch.logaddexp(alpha[:, 2:], alpha[:, 1:-1])
        alpha = now + torch.logaddexp(stay_or_go, alpha[:, :-2] + passing)
        alphas.append(alpha)
        alpha = torch.cat([never, alpha], dim=1)
    last = torch.stack(alphas)[frames - 1, torch.arange(batch, device=label.device)]
    end = last.gather(1, 2 * label_length[:, None])
    letter = last.gather(1, (2 * label_length[:, None] - 1).clamp(min=0))
    letter = letter.masked_fill(label_length[:, None] == 0, NEVER)
    loss = -torch.logaddexp(end, letter)[:, 0]
    return loss.masked_fill(loss > -0.5 * NEVER, torch.inf)
