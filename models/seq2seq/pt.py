"""Translation by LSTMs with attention, in PyTorch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.models.recurrent_pt import LSTM
from xbench.models.seq2seq import GO, PAD, Config, log_expected

State = tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]
"""Where the decoder is: the vector of the word that it said last, and h and c of every layer."""


class Memory(NamedTuple):
    """What the decoder may look at: ``values`` and ``keys`` are (batch, source, hidden).

    ``mask`` (batch, source) is 0 on words, and on PAD so low that it gets no attention.
    """

    values: Tensor
    keys: Tensor
    mask: Tensor


class Seq2Seq(nn.Module):
    """Sentences (batch, source) -> translations and their log-probabilities (batch, target)."""

    log_expected: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden, embedding = config.hidden, config.embedding
        self.source_words = nn.Embedding(config.vocabulary, embedding)
        self.encoder = LSTM(embedding, hidden, config.layers, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.target_words = nn.Embedding(config.vocabulary, embedding)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.decoder = nn.LSTM(embedding + hidden, hidden)
        self.upper = nn.LSTM(hidden, hidden, config.layers - 1)
        self.output = nn.Linear(hidden, config.vocabulary)
        expected = torch.from_numpy(log_expected(config))
        self.register_buffer("log_expected", expected, persistent=False)

    def encode(self, source: Tensor) -> tuple[Memory, Tensor, Tensor]:
        """What the decoder may look at, and the last h and c (layers, batch, hidden)."""
        real = source != PAD
        # Without biases, an LSTM at rest that reads zeros stays at rest.
        words = self.source_words(source) * real.unsqueeze(2)
        found, (h, c) = self.encoder(words.transpose(0, 1))
        values = found.transpose(0, 1).contiguous()
        mask = values.new_zeros(source.shape).masked_fill(~real, torch.finfo(values.dtype).min)
        return Memory(values, self.key(values), mask), h, c

    def attend(self, memory: Memory, h: Tensor) -> tuple[Tensor, Tensor]:
        """The attention (batch, source) of the state ``h``, and what it sees (batch, hidden)."""
        energies = torch.tanh(memory.keys + self.query(h).unsqueeze(1))
        scores = self.score(energies.flatten(0, 1)).view_as(memory.mask)
        attention = torch.softmax(scores + memory.mask, dim=1)
        return attention, torch.bmm(attention.unsqueeze(1), memory.values).squeeze(1)

    def step(self, memory: Memory, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """Says one word more: the new state, then token, score, attention and the last layer."""
        word, before_h, before_c = state
        attention, context = self.attend(memory, before_h[0])
        x = torch.cat([word, context], dim=1)
        h, c = [], []
        layers = (*self.decoder.all_weights, *self.upper.all_weights)
        for weights, *last in zip(layers, before_h, before_c, strict=True):
            x, cell = torch.lstm_cell(x, last, *weights)
            h.append(x)
            c.append(cell)
        score, token = torch.log_softmax(self.output(x), dim=1).max(dim=1)
        return (self.target_words(token), tuple(h), tuple(c)), (token, score, attention, x)

    def start(self, source: Tensor) -> tuple[Memory, State]:
        """What the decoder may look at, and where it starts."""
        memory, h, c = self.encode(source)
        word = self.target_words(torch.full_like(source[:, 0], GO))
        return memory, (word, h.unbind(), c.unbind())

    def decode(self, source: Tensor) -> tuple[Memory, list[tuple[Tensor, ...]]]:
        """What the decoder looked at, and what ``step`` tells of each step."""
        memory, state = self.start(source)
        told = []
        for _ in range(source.shape[1] + self.config.headroom):
            state, seen = self.step(memory, state)
            told.append(seen)
        return memory, told

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable word at each step, and its log-probability."""
        if torch.compiler.is_exporting():
            return self.scan(source)
        _, told = self.decode(source)
        tokens, scores, *_ = zip(*told, strict=True)
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1)

    def scan(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """``forward`` as one operator, which an exporter takes whole and which is slow to run."""
        from torch._higher_order_ops.scan import scan

        memory, (word, h, c) = self.start(source)

        def step(state: State, place: Tensor) -> tuple[State, tuple[Tensor, Tensor]]:
            state, (token, score, *_) = self.step(memory, state)
            return state, (token, score)

        # What goes round may share no memory: h and c are parts of one tensor.
        state = word, tuple(x.clone() for x in h), tuple(x.clone() for x in c)
        places = word.new_zeros(source.shape[1] + self.config.headroom, 1)
        _, (tokens, scores) = scan(step, state, places)
        return tokens.t(), scores.t()

    def taps(self, source: Tensor) -> dict[str, Tensor]:
        """The landmarks of inference by their names in ``SPEC.taps``."""
        memory, told = self.decode(source)
        _, scores, attention, decoder = (torch.stack(x, dim=1) for x in zip(*told, strict=True))
        return {
            "encoder": memory.values,
            "attention": attention,
            "decoder": decoder,
            "scores": scores,
        }

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        """The last layer (target * batch, hidden) while GO and the words of ``target`` are read.

        Only the first layer takes part in attention: all else is done for all words at once.
        """
        memory, h, c = self.encode(source)
        read = F.pad(target.t()[:-1], (0, 0, 1, 0), value=GO)
        weight, recurrence, *biases = self.decoder.all_weights[0]
        embedding = self.config.embedding
        of_words, of_context = weight[:, :embedding], weight[:, embedding:]
        seen = F.linear(self.target_words(read), of_words, biases[0] + biases[1])
        state, cell = h[0], c[0]
        states = []
        for now in seen.unbind():
            _, context = self.attend(memory, state)
            gates = torch.addmm(torch.addmm(now, context, of_context.t()), state, recurrence.t())
            state, cell = lstm_step(gates, cell)
            states.append(state)
        start = h[1:].contiguous(), c[1:].contiguous()
        last: Tensor = self.upper(torch.stack(states), start)[0]
        return last.flatten(0, 1)

    def objective(
        self,
        source: Tensor,
        target: Tensor,
        sampled: Tensor | None = None,
        loss: str = "sampled-softmax",
    ) -> Tensor:
        """The mean over all words of all targets, EOS included, of -log p(word)."""
        states = self.teach(source, target)
        word = target.t().flatten()
        if loss == "softmax":
            return F.cross_entropy(self.output(states), word, ignore_index=PAD)
        if sampled is None:
            sampled = self.sample(word.device)
        logits = self.candidates(states, word, sampled)
        # The true word is the first candidate.
        return F.cross_entropy(logits, (word == PAD).long().neg(), ignore_index=-1)

    def candidates(self, states: Tensor, word: Tensor, sampled: Tensor) -> Tensor:
        """Logits of the true words and of the sampled ones: (words, 1 + samples).

        Less the logarithm of the expected count of each (Jean et al. 2015, section 3; Bengio &
        Senecal 2008). A sampled word that is the true one counts only once.
        """
        weight = self.output.weight
        bias = self.output.bias - self.log_expected.to(weight.dtype)
        true = (states * F.embedding(word, weight)).sum(dim=1) + bias[word]
        others = torch.addmm(bias[sampled], states, F.embedding(sampled, weight).t())
        hit = word[:, None] == sampled
        others = others.masked_fill(hit, torch.finfo(others.dtype).min)
        return torch.cat([true[:, None], others], dim=1)

    def sample(self, device: torch.device) -> Tensor:
        """Ids in the distribution of ``sampled``, by the inverse of its distribution function."""
        unit = torch.rand(self.config.samples, device=device)
        ids = torch.exp(unit * math.log(self.config.vocabulary + 1.0)).long() - 1
        return ids.clamp(0, self.config.vocabulary - 1)


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new h and c from the sums of the four gates (batch, 4 hidden) and the cell before."""
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def build(config: Config) -> Seq2Seq:
    return Seq2Seq(config)
