"""Deep Q-network's experience: the pinned default, a replay of it, games by name, the baseline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xbench.data import Batches, digest
from xbench.errors import DataError, UsageError
from xbench.models.deepq import SPEC, data

ale_py = pytest.importorskip("ale_py")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("gymnasium")

Array = np.ndarray[Any, Any]
TINY = SPEC.sizes["tiny"]
BREAKOUT_TINY_SEED_0 = "41ee00a2477cbc1169f663ab054ece98f35081a884b9591fe1b8563eb7480a66"


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XBENCH_DATA", raising=False)


def load(
    source: str | None = None, *, size: str = "tiny", batch: int = 32, count: int = 1, seed: int = 0
) -> Batches:
    return data.load(SPEC.sizes[size], batch=batch, count=count, seed=seed, source=source)


def whole(batches: Batches, name: str) -> Array:
    return np.concatenate([batch[name] for batch in batches.inputs])


class TestBreakout:
    def test_the_default_is_pinned(self) -> None:
        """The same bits wherever ale-py is 0.12.1; a change here changes every result."""
        batches = load(count=5)
        assert digest(batches.inputs[4]) == BREAKOUT_TINY_SEED_0
        assert batches.description.startswith("Breakout (Arcade Learning Environment ")
        assert batches.description.endswith("50% at random, else after the ball, with seed 0")

    @pytest.mark.parametrize("batch", [1, 5])
    def test_shapes_types_and_ranges(self, batch: int) -> None:
        batches = load(batch=batch, count=2, seed=1)
        assert len(batches.inputs) == 2
        for found in batches.inputs:
            wanted = SPEC.step_inputs(TINY, "train")
            assert list(found) == [item.name for item in wanted]
            for item in wanted:
                assert found[item.name].shape == item.of(TINY, batch), item.name
                assert found[item.name].dtype == item.dtype, item.name
                assert found[item.name].flags.c_contiguous
            for name in ("state", "next_state"):
                levels = np.rint(found[name] * 255)
                exact = levels.astype(np.float32) / np.float32(255)
                np.testing.assert_array_equal(found[name], exact)
                assert levels.min() == 0
                assert 100 < levels.max() <= 255

    def test_the_first_five_batches_of_tiny_have_all_that_can_happen(self) -> None:
        """So that what is compared depends on every input."""
        batches = load(count=5)
        assert set(whole(batches, "reward")) == {0.0, 1.0}
        assert set(whole(batches, "done")) == {0.0, 1.0}
        assert set(whole(batches, "action")) == {0, 1, 2, 3}

    def test_the_seed_steers(self) -> None:
        assert len({digest(load(batch=2, seed=seed).inputs[0]) for seed in range(2)}) == 2

    def test_batching_only_cuts_and_fewer_are_the_first_of_more(self) -> None:
        one, three = load(batch=6), load(batch=2, count=3)
        for name in one.inputs[0]:
            np.testing.assert_array_equal(whole(one, name), whole(three, name))
        # The second of these reaches into another memory.
        short, long = (load(batch=5, count=count) for count in (2, data.MEMORY // 5 + 2))
        for some, more in zip(short.inputs, long.inputs, strict=False):
            assert digest(some) == digest(more)

    def test_no_step_comes_twice(self) -> None:
        steps, played = data.drawn("Breakout", 84, 0, data.MEMORY + 100)
        assert len(np.unique(steps)) == len(steps) == data.MEMORY + 100
        assert len(played.at) == 2 * data.MEMORY
        assert (np.diff(played.at) > 0).all(), "a step of the second memory is not of the first"

    def test_a_screen_moves_up_by_one(self) -> None:
        found = load().inputs[0]
        np.testing.assert_array_equal(found["next_state"][:, :-1], found["state"][:, 1:])
        assert (found["next_state"][:, -1] != found["state"][:, -1]).any(axis=(1, 2)).mean() > 0.9

    def test_screens_of_an_earlier_life_are_black(self) -> None:
        played = data.play("Breakout", 84, 1, 0)
        second = np.flatnonzero(played.first > 0)[0]
        assert played.at[second] == played.first[second]
        found = data.as_inputs(played, np.arange(second, second + 4), 4)
        lit = found["state"].any(axis=(2, 3))
        np.testing.assert_array_equal(lit, np.tri(4, dtype=bool)[:, ::-1])

    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_play_is_what_the_console_shows(self, seed: int) -> None:
        """The same actions once more, on the emulator itself: screens, rewards, lost lives."""
        played = data.play("Breakout", 84, seed, 0)
        console = ale_py.ALEInterface()
        console.setFloat("repeat_action_probability", 0.0)
        console.loadROM(ale_py.roms.get_rom_path("breakout"))
        console.reset_game()
        number, first = 0, 0
        for step, action in enumerate(played.action):
            assert (played.at[step], played.first[step]) == (number, first)
            lives, earned, seen = console.lives(), 0, []
            for _ in range(4):
                earned += console.act(console.getMinimalActionSet()[action])
                seen.append(console.getScreenGrayscale())
                if console.game_over():
                    break
            screen = np.maximum(*seen[-2:])
            small = Image.fromarray(screen).resize((84, 84), Image.Resampling.BILINEAR)
            number += 1
            np.testing.assert_array_equal(played.frames[number], small)
            assert played.reward[step] == np.sign(earned)
            ended = console.lives() < lives or console.game_over()
            assert played.done[step] == ended
            if console.game_over():
                console.reset_game()
                number += 1
            if ended:
                first = number
        assert number == len(played.frames) - 1
        assert played.done.sum() > 2
        assert (number > data.MEMORY) == (seed == 1), "a game ends within the play of seed 1"

    def test_the_player_goes_after_the_ball(self) -> None:
        memory = np.zeros(128, np.uint8)
        meanings = ("NOOP", "FIRE", "RIGHT", "LEFT")
        assert data.actions("Breakout") == meanings
        memory[data.PADDLE_X] = 100
        assert meanings[data.after_the_ball(memory)] == "FIRE", "no ball is there: serve"
        memory[data.BALL_Y] = 90
        for ball, wanted in ((108, "NOOP"), (112, "RIGHT"), (104, "LEFT"), (255, "RIGHT")):
            memory[data.BALL_X] = ball
            assert meanings[data.after_the_ball(memory)] == wanted, ball

    def test_a_player_after_the_ball_earns_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The places in the console's memory are right: with no chance in it, it misses little."""
        found = {}
        for share in (0.0, 1.0):
            monkeypatch.setattr(data, "EXPLORATION", share)
            played = data.play.__wrapped__("Breakout", 84, 0, 0)
            found[share] = float(played.reward.sum()), int(played.done.sum())
        assert found[0.0][0] > 2 * found[1.0][0]
        assert found[0.0][1] < found[1.0][1] / 2


class TestGames:
    @pytest.mark.parametrize("name", ["Skiing", "skiing", "ALE/Skiing-v5", "SKI-ING"])
    def test_a_game_by_any_spelling(self, name: str) -> None:
        assert data.find(name) == "Skiing"

    def test_every_game_is_known_by_both_its_names(self) -> None:
        names = data.games()
        assert len(names) > 100
        assert len({data.folded(name) for name in names}) == len(names)
        assert data.find("ms_pacman") == data.find("MsPacman") == "MsPacman"

    def test_a_game_wins_over_a_folder_of_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "freeway").mkdir()
        monkeypatch.chdir(tmp_path)
        assert data.find("freeway") == "Freeway"

    def test_a_game_with_fewer_actions(self) -> None:
        batches = load("freeway", batch=64)
        assert batches.description.startswith("Freeway ")
        assert batches.description.endswith("played at random, with seed 0")
        assert set(whole(batches, "action")) == {0, 1, 2}

    def test_a_game_with_too_many_actions(self) -> None:
        words = r"Pong: .* 6 actions \(NOOP, FIRE, .*\), and this network values 4; .*legal"
        with pytest.raises(DataError, match=words):
            load("pong")

    def test_the_same_game_where_it_fits(self) -> None:
        batches = load("pong", size="legal", count=8)
        assert set(whole(batches, "action")) == set(range(6))
        assert -1.0 in whole(batches, "reward")
        assert set(whole(batches, "reward")) <= {-1.0, 0.0, 1.0}

    def test_those_that_fit_every_size_are_the_ones_in_the_readme(self) -> None:
        text = Path(data.__file__).with_name("README.md").read_text().replace("\n", " ")
        named = text.partition("network has outputs: ")[2].partition(" fit all sizes")[0]
        games = named.replace(" and ", ", ").split(", ")
        assert len(games) == 9
        assert {game for game in games if len(data.actions(game)) <= TINY.actions} == set(games)

    def test_an_unknown_game(self) -> None:
        words = "brekout: no such game .* did you mean Breakout[?] known: Adventure, .*Zaxxon"
        with pytest.raises(DataError, match=words):
            load("brekout")

    def test_a_path_is_not_a_game(self, tmp_path: Path) -> None:
        words = f"{tmp_path}: deepq plays a game and reads no files; expected the name of a game"
        with pytest.raises(DataError, match=words):
            load(str(tmp_path))

    def test_a_folder_of_data_is_refused_and_a_name_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XBENCH_DATA", str(tmp_path))
        assert data.find(None) == "Breakout"
        (tmp_path / "deepq").mkdir()
        with pytest.raises(DataError, match="deepq plays a game and reads no files"):
            load()
        assert data.find("Breakout") == "Breakout"

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gymnasium", None)
        data.gymnasium.cache_clear()
        with pytest.raises(
            DataError, match=r"playing Atari games needs pip install 'xbench\[data\]'"
        ):
            load("Kaboom")
        monkeypatch.undo()
        assert data.find("Kaboom") == "Kaboom"


def experience(rewards: list[float], ends: list[float]) -> dict[str, Array]:
    return {"reward": np.array(rewards, np.float32), "done": np.array(ends, np.float32)}


class TestBaseline:
    def test_by_hand(self) -> None:
        """Where all ends, c is what a step earns on average, as errors are below 1."""
        batches = [experience([1, 0], [1, 1]), experience([0, 0], [1, 1])]
        found = data.baseline(batches, "td", TINY)
        assert found == pytest.approx([(0.75**2 + 0.25**2) / 4, 0.25**2 / 2])

    def test_no_constant_is_better(self) -> None:
        batches = load(count=5, seed=1).inputs
        reward, done = (
            np.concatenate([batch[name].astype(np.float64) for batch in batches])
            for name in ("reward", "done")
        )
        assert reward.any()
        assert done.any()
        best = float(np.mean(data.baseline(batches, "td", TINY)))
        losses = []
        for value in np.linspace(-2.0, 12.0, 14_001):
            error = np.abs(value - reward - 0.99 * (1.0 - done) * value)
            losses.append(float(np.where(error < 1, error**2 / 2, error - 0.5).mean()))
        assert best <= min(losses) < best * 1.01
        assert best < losses[2000], "the constant is not 0"

    def test_long_errors_cost_their_tangent(self) -> None:
        """One step that ends against two that go on: c is 1 or more, and is not the mean."""
        found = data.huber(np.array([-3.0, -1.0, 0.0, 0.5, 2.0]))
        assert found.tolist() == [2.5, 0.5, 0.0, 0.125, 1.5]

    def test_an_unknown_loss(self) -> None:
        with pytest.raises(UsageError, match="mse"):
            data.baseline([experience([1], [1])], "mse", TINY)
