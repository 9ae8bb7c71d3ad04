"""The end-to-end memory network in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.memnet import PAD, UNSEEN, Config, positions


class MemoryNetwork(nn.Module):
    """A story (batch, sentences, words), a question (batch, words) -> logits (batch, vocabulary).

    Ids of words, the latest sentence first.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        levels = range(config.hops + 1)
        self.embedding = nn.ModuleList(
            nn.Embedding(config.vocabulary, config.width) for _ in levels
        )
        self.time = nn.ParameterList(torch.empty(config.memory, config.width) for _ in levels)
        # Whole numbers, which are right in every precision that the module is converted to.
        whole = torch.from_numpy(positions(config)).float()
        self.register_buffer("positions", whole, persistent=False)
        self.scale = config.words * config.width

    def weights(self, ids: Tensor) -> Tensor:
        """How much each word counts in each unit: the position encoding; 0 for padding."""
        assert isinstance(self.positions, Tensor)
        return (self.positions / self.scale) * (ids != PAD)[..., None]

    def taps(self, story: Tensor, query: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        weights = self.weights(story)
        unseen = UNSEEN * (story.amax(dim=2) == PAD).to(weights.dtype)
        memories = [
            (words(story) * weights).sum(dim=2) + time[: story.shape[1]]
            for words, time in zip(self.embedding, self.time, strict=True)
        ]
        state = (self.embedding[0](query) * self.weights(query)).sum(dim=1)
        seen = {"query": state}
        for hop in range(1, len(memories)):
            scores = torch.bmm(memories[hop - 1], state.unsqueeze(2)).squeeze(2)
            attention = torch.softmax(scores + unseen, dim=1)
            state = state + torch.bmm(attention.unsqueeze(1), memories[hop]).squeeze(1)
            seen |= {f"hop{hop}.attention": attention, f"hop{hop}.state": state}
        return seen

    def forward(self, story: Tensor, query: Tensor) -> Tensor:
        *_, state = self.taps(story, query).values()
        last = self.embedding[-1]
        assert isinstance(last, nn.Embedding)
        return F.linear(state, last.weight)

    def objective(self, story: Tensor, query: Tensor, answer: Tensor, loss: str) -> Tensor:
        """The sum over the batch of -log p(answer)."""
        return F.cross_entropy(self(story, query), answer, reduction="sum")


def build(config: Config) -> MemoryNetwork:
    return MemoryNetwork(config)
