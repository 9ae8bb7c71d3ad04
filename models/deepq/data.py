"""Deep Q-network's experience: Breakout, or another game of the Arcade Learning Environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from xbench.data import Batches, locate, require
from xbench.draws import shuffled, stream
from xbench.errors import DataError, unknown
from xbench.models.deepq import DELTA, GAMMA, SPEC, Config

Array = np.ndarray[Any, Any]

BASELINE_NAME = "one value for all"
EMBEDDED = "Breakout"
PURPOSE = "playing Atari games"

MEMORY = 512
"""Steps played at a time, whose order is then shuffled."""
SCREENS_PER_STEP = 4
"""An action is held for four of the console's 60 screens a second."""
EXPLORATION = 0.5
"""Share of random actions of the player of Breakout: it both hits and misses the ball."""
BALL_X, BALL_Y, PADDLE_X = 99, 101, 72
"""Where Breakout keeps them in its memory (Anand et al. 2019, arXiv 1906.08226)."""
MIDDLE, NEAR = 8, 3
"""The paddle's middle is so far right of its place; it stays where the ball is so near."""


@dataclass(frozen=True, slots=True)
class Played:
    """Steps of games, one after another.

    ``frames`` are all screens, uint8 (n, side, side). A step leads from the screen ``at`` to the
    one after it; ``first`` is the first screen of the life that it is in.
    """

    frames: Array
    at: Array
    first: Array
    action: Array
    reward: Array
    done: Array


def load(config: Config, *, batch: int, count: int, seed: int, source: str | None) -> Batches:
    """``count`` batches of steps in a game, in random order, none twice.

    ``state`` and ``next_state`` are float32 (batch, history, side, side) in [0, 1]: the luminance
    of the last screens, the newest last, with black for those before the present life. ``action``
    is int64 (batch), an index into the game's own actions; ``reward`` is -1, 0 or 1 and ``done``
    0 or 1, both float32 (batch). ``source`` is the name of a game, or None for Breakout. ``seed``
    steers the player. Raises DataError for a game that is not known or has more actions than the
    network has outputs.
    """
    game = find(source)
    names = actions(game)
    if len(names) > config.actions:
        raise DataError(
            f"{game}: its player has {len(names)} actions ({', '.join(names)}), and this network "
            f"values {config.actions}; expected a game with no more, or --size legal, which "
            "values the 18 that a game can have"
        )
    needed = batch * count
    steps, played = drawn(game, config.side, seed, needed)
    chance = f"{EXPLORATION:.0%} at random, else after the ball"
    player = chance if game == EMBEDDED else "at random"
    version = require("ale_py", PURPOSE).__version__
    return Batches(
        [
            as_inputs(played, steps[start : start + batch], config.history)
            for start in range(0, needed, batch)
        ],
        f"{game} (Arcade Learning Environment {version}), played {player}, with seed {seed}",
    )


def find(source: str | None) -> str:
    """The game that ``source`` names, as Gymnasium spells it; the default where it is None.

    Neither case nor separators count: ``MsPacman``, ``ms_pacman`` and ``ALE/MsPacman-v5`` are one
    game. Raises DataError for anything else, a path included: there is no file to read.
    """
    expected = "expected the name of a game, as in Breakout or MsPacman"
    if source is None:
        path = locate(SPEC.name, None)
        if path is None:
            return EMBEDDED
    else:
        known = {folded(game): game for game in games()}
        if folded(source) in known:
            return known[folded(source)]
        path = Path(source).expanduser()
        if not path.exists():
            near = get_close_matches(folded(source), known, n=1, cutoff=0.6)
            hint = f"did you mean {known[near[0]]}? " if near else ""
            raise DataError(
                f"{source}: no such game in the Arcade Learning Environment; {expected}; {hint}"
                f"known: {', '.join(known.values())}"
            )
    raise DataError(f"{path}: {SPEC.name} plays a game and reads no files; {expected}")


def folded(name: str) -> str:
    """The name of a game without what people write differently."""
    plain = name.lower().removeprefix("ale/").removesuffix("-v5")
    return "".join(letter for letter in plain if letter.isalnum())


@cache
def gymnasium() -> Any:
    """The package, which then knows the games of the Arcade Learning Environment."""
    package, ale = require("gymnasium", PURPOSE), require("ale_py", PURPOSE)
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    package.register_envs(ale)
    return package


def games() -> list[str]:
    """Every game for one player, in the spelling of Gymnasium's identifiers."""
    names = [name for name in gymnasium().registry if name.startswith("ALE/")]
    return sorted(name.removeprefix("ALE/").removesuffix("-v5") for name in names)


def console(game: str) -> Any:
    """A console with ``game`` in it, which shows every screen in grey and obeys every time."""
    return gymnasium().make(
        f"ALE/{game}-v5",
        obs_type="grayscale",
        frameskip=1,
        repeat_action_probability=0.0,
        disable_env_checker=True,
    )


@cache
def actions(game: str) -> tuple[str, ...]:
    """The actions that have an effect in ``game``, in the order of their indices."""
    with console(game) as atari:
        return tuple(atari.unwrapped.get_action_meanings())


@lru_cache(maxsize=32)
def play(game: str, side: int, seed: int, number: int) -> Played:
    """``MEMORY`` steps from a fresh console; ``number`` tells apart what one seed plays.

    A lost life ends a step's future as the end of the game does, and the game goes on. Of the
    last two screens of a step the brighter pixels are kept, since the console draws some things on
    every second screen only.
    """
    words = stream("play", seed, f"{game}/{number}").random_raw((MEMORY, 2))
    chance = (words[:, 0] >> np.uint64(11)) * 2.0**-53
    count = len(actions(game))
    random = ((words[:, 1] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
    follows = game == EMBEDDED
    table = np.zeros((5, MEMORY), np.int64)
    frames: list[Array] = []
    with console(game) as atari:
        over = True
        for step in range(MEMORY):
            if over:
                screen, state = atari.reset(seed=0 if step == 0 else None)
                frames.append(fitted(screen, side))
                first = len(frames) - 1
            action, at, lives = int(random[step]), len(frames) - 1, state["lives"]
            if follows and chance[step] >= EXPLORATION:
                action = after_the_ball(atari.unwrapped.ale.getRAM())
            earned, seen = 0.0, [screen]
            for _ in range(SCREENS_PER_STEP):
                screen, reward, over, _, state = atari.step(action)
                earned += reward
                seen.append(screen)
                if over:
                    break
            frames.append(fitted(np.maximum(*seen[-2:]), side))
            done = over or state["lives"] < lives
            table[:, step] = at, first, action, np.sign(earned), done
            if done:
                first = len(frames) - 1
    return Played(np.stack(frames), *table)


def after_the_ball(memory: Array) -> int:
    """What Breakout's player does to be where the ball is: nothing, serve, right or left."""
    if memory[BALL_Y] == 0:
        return 1
    away = int(memory[BALL_X]) - int(memory[PADDLE_X]) - MIDDLE
    return 0 if abs(away) <= NEAR else 2 if away > 0 else 3


def fitted(screen: Array, side: int) -> Array:
    """A grey screen, uint8 (height, width), as (side, side), by Pillow's integer arithmetic."""
    image = require("PIL.Image", "scaling pictures")
    square = image.fromarray(screen).resize((side, side), image.Resampling.BILINEAR)
    return np.asarray(square)


def drawn(game: str, side: int, seed: int, needed: int) -> tuple[Array, Played]:
    """Which steps to show, ``needed`` of them, and the play that they are of.

    Each memory is drawn from until every step of it was; fewer steps are the first of more.
    """
    memories = [play(game, side, seed, number) for number in range(-(-needed // MEMORY))]
    order = [
        shuffled(MEMORY, MEMORY, seed, f"{game}/{number}") + number * MEMORY
        for number in range(len(memories))
    ]
    return np.concatenate(order)[:needed], joined(memories)


def joined(memories: Sequence[Played]) -> Played:
    """One play after another as one."""
    starts = np.cumsum([0, *(len(memory.frames) for memory in memories[:-1])])
    return Played(
        frames=np.concatenate([memory.frames for memory in memories]),
        at=np.concatenate([m.at + start for m, start in zip(memories, starts, strict=True)]),
        first=np.concatenate([m.first + start for m, start in zip(memories, starts, strict=True)]),
        action=np.concatenate([memory.action for memory in memories]),
        reward=np.concatenate([memory.reward for memory in memories]),
        done=np.concatenate([memory.done for memory in memories]),
    )


def as_inputs(played: Played, steps: Array, history: int) -> dict[str, Array]:
    """Some steps of a play as one batch of inputs and targets."""
    at, first = played.at[steps], played.first[steps]
    return {
        "state": stacked(played.frames, at, first, history),
        "action": played.action[steps],
        "reward": played.reward[steps].astype(np.float32),
        "next_state": stacked(played.frames, at + 1, first, history),
        "done": played.done[steps].astype(np.float32),
    }


def stacked(frames: Array, last: Array, first: Array, history: int) -> Array:
    """The ``history`` frames up to each of ``last``; black for those before its ``first``.

    float32 (n, history, side, side) in [0, 1].
    """
    index = last[:, None] + np.arange(1 - history, 1)
    found = frames[np.maximum(index, 0)].astype(np.float32) / np.float32(255)
    found[index < first[:, None]] = 0.0
    return found


def baseline(batches: Sequence[Mapping[str, Array]], loss: str, config: Config) -> list[float]:
    """The loss of each batch, in float64, where every action is always worth the same.

    Both networks say c, so that a step's error is c (1 - gamma (1 - done)) - reward. c is the best
    one for all batches together.
    """
    if loss not in SPEC.losses:
        raise unknown("loss", loss, SPEC.losses)
    pairs = [(1.0 - GAMMA * (1.0 - wide(b["done"])), wide(b["reward"])) for b in batches]
    slope, reward = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    best = lowest(slope, reward)
    return [float(huber(slope * best - reward).mean()) for slope, reward in pairs]


def wide(values: Array) -> Array:
    return values.astype(np.float64)


def lowest(slope: Array, reward: Array) -> float:
    """Where the sum of huber(slope * c - reward) is lowest, which is convex in c; by bisection.

    Slopes are at least 1 - gamma and rewards within [-1, 1], so it is within 1 / (1 - gamma).
    """
    low, high = -1.0 / (1.0 - GAMMA), 1.0 / (1.0 - GAMMA)
    for _ in range(60):
        middle = (low + high) / 2.0
        rising = float(slope @ np.clip(slope * middle - reward, -DELTA, DELTA)) > 0.0
        low, high = (low, middle) if rising else (middle, high)
    return (low + high) / 2.0


def huber(error: Array) -> Array:
    """e^2 / 2 up to |e| = DELTA, and its tangent beyond."""
    size = np.abs(error)
    return np.where(size <= DELTA, 0.5 * size**2, DELTA * (size - 0.5 * DELTA))


def baseline_note(loss: str) -> str:
    """What a reader of the baseline must know."""
    return "in both networks"
