"""How an ONNX Runtime session is opened: its options, its providers, and why it did not open."""

from __future__ import annotations

import difflib
import functools
import mmap
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xbench.errors import EngineError, Unsupported
from xbench.runners.ort_placement import PROVIDERS

SESSION, PROVIDER = "session.", "provider."
"""What options of a case begin with, before the key as ONNX Runtime knows it."""
LEVELS = {
    "0": "ORT_DISABLE_ALL",
    "1": "ORT_ENABLE_BASIC",
    "2": "ORT_ENABLE_EXTENDED",
    "99": "ORT_ENABLE_ALL",
}
OWNED = {
    "intra_op_num_threads": "use --threads",
    "graph_optimization_level": "use --ort-opt",
    "enable_profiling": "xbench profiles in a session of its own",
    "profile_file_prefix": "xbench profiles in a session of its own",
    "optimized_model_filepath": "xbench writes it where it profiles",
    "record_ep_graph_assignment_info": "xbench needs it to prove where nodes ran",
}
"""Session options that are not the user's to set, and what to do instead."""
_NATIVE = [kind for kind in vars(native).values() if isinstance(kind, type)]
ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in _NATIVE if issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
)
"""What ONNX Runtime raises: its own errors have no common ancestor below Exception."""


def session_options(threads: int, options: Mapping[str, str] | None = None) -> Any:
    """The options of a session, from those of a case (``ort-opt``, ``session.KEY``).

    Raises EngineError for a key that ONNX Runtime cannot know or that is not the user's to set,
    and for a value that an attribute does not take. ONNX Runtime itself ignores an entry that it
    does not know: ``proven_options`` finds those.
    """
    asked = options or {}
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    level = asked.get("ort-opt", "99")
    if level not in LEVELS:
        raise EngineError(f"no optimisation level {level!r}: known: {', '.join(LEVELS)}")
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in chosen(asked, SESSION).items():
        set_option(made, key, value)
    return made


def chosen(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The options that begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in options.items() if k.startswith(prefix)}


def set_option(made: Any, key: str, value: str) -> None:
    """Set one session option: an attribute where one has that name, else a config entry."""
    name = key.removeprefix(SESSION)
    if name in OWNED:
        raise EngineError(f"session option {key!r} is not to be set: {OWNED[name]}")
    known = attributes(made)
    if name in known:
        setattr(made, name, converted(key, value, known[name]))
    elif "." in key:
        made.add_session_config_entry(key, value)
    else:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise EngineError(
            f"ONNX Runtime has no session option {key!r}: {hint}attributes: "
            f"{', '.join(sorted(known))}; other keys have a dot, as session.disable_prepacking"
        )


def attributes(made: Any) -> dict[str, Any]:
    """The plain attributes of SessionOptions and their present values."""
    names = [name for name in dir(made) if not name.startswith("_") and name not in OWNED]
    values = {name: getattr(made, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


def converted(key: str, text: str, like: Any) -> Any:
    """``text`` as a value of the type of ``like``. Raises EngineError where it is none."""
    if isinstance(like, bool):
        truths = {"1": True, "true": True, "0": False, "false": False}
        if text.lower() in truths:
            return truths[text.lower()]
        raise EngineError(f"session option {key!r} takes 0 or 1, not {text!r}")
    if isinstance(like, int):
        if re.fullmatch(r"-?[0-9]+", text):
            return int(text)
        raise EngineError(f"session option {key!r} takes a whole number, not {text!r}")
    if isinstance(like, str):
        return text
    members: dict[str, Any] = type(like).__members__
    for name, member in members.items():
        if text.upper() in (name, name.removeprefix("ORT_")):
            return member
    raise EngineError(f"session option {key!r} takes {', '.join(members)}, not {text!r}")


def providers(device: str, options: Mapping[str, str] | None = None) -> list[Any]:
    """The execution providers for ``device``, the first with its ``provider.KEY`` options.

    Raises Unsupported for options of the CPU provider: it takes none, and ignores what it is
    given without a word.
    """
    asked = chosen(options or {}, PROVIDER)
    first, *rest = PROVIDERS[device]
    if not asked:
        return [first, *rest]
    if device == "cpu":
        raise Unsupported(
            f"ONNX Runtime's CPU provider has no options and would ignore {', '.join(asked)}: "
            "leave them out, or use --session-option"
        )
    return [(first, asked), *rest]


def open_session(
    model: str | bytes, device: str, threads: int, options: Mapping[str, str] | None = None
) -> Any:
    """A session for ``model``. Raises as ``opened`` does."""
    return opened(model, session_options(threads, options), providers(device, options))


def opened(model: str | bytes, options: Any, asked: list[Any]) -> Any:
    """A session, without ONNX Runtime's own second try on other providers with no options.

    Raises Unsupported where a kernel is missing, MemoryError where memory is, EngineError with
    ONNX Runtime's words for everything else, as a provider option it does not know.
    """
    try:
        return ort.InferenceSession(model, options, providers=asked, enable_fallback=0)
    except native.NotImplemented as error:
        raise Unsupported(words(error)) from error
    except ERRORS as error:
        text = words(error)
        if "bad_alloc" in text or "Failed to allocate" in text:
            raise MemoryError(text) from error
        raise EngineError(text) from error


def words(error: BaseException) -> str:
    """An error of ONNX Runtime in one line, without its codes and places in its source."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    return re.sub(r"^(Exception during initialization: )?/\S+:\d+ .*?\) (?=[A-Z])", "", text)


def proven_options(options: Mapping[str, str]) -> None:
    """Raise EngineError for a config entry that this ONNX Runtime would ignore.

    It keeps any entry and reads those it knows, so an unknown key changes nothing and nobody
    hears of it. The keys it knows are texts in its libraries: one that is in none is unknown.
    A value that it does not understand cannot be found this way.
    """
    for key in chosen(options, SESSION):
        if "." in key and key.removeprefix(SESSION) not in attributes(ort.SessionOptions()):
            library_knows(key)


@functools.cache
def library_knows(key: str) -> None:
    """Raise EngineError unless ``key`` stands in a library of ONNX Runtime as a whole text."""
    folder = Path(native.__file__).parent
    own = Path(native.__file__)
    others = [p for p in sorted(folder.glob("*onnxruntime*")) if p.is_file() and p != own]
    for path in (own, *others):
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(key.encode() + b"\0") >= 0:
                    return
    raise EngineError(
        f"this onnxruntime ({ort.__version__}) knows no session option {key!r} and would ignore it"
    )


def captured(action: Callable[[], Any]) -> tuple[Any, str]:
    """What ``action`` returns, and what native code wrote to stderr meanwhile.

    ONNX Runtime says why CUDA did not load only there.
    """
    import tempfile

    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            result = action()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            log = file.read().decode(errors="replace")
            os.write(2, log.encode())
    return result, log


def tiny_model() -> bytes:
    """x @ x for an 8x8 float32 x."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
