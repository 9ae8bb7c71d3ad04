"""PyTorch through ``torch.compile``: the same definitions, compiled by inductor."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

# The first compilation imports this, for 0.8 s: here it is paid once per host.
import torch._inductor.compile_fx
import torch.utils._triton
from torch._inductor import config, cpp_builder, exc
from torch._inductor.runtime.cache_dir_utils import cache_dir

from xbench.errors import Unavailable
from xbench.result import Operators, Profile
from xbench.runners.base import Runner, Work
from xbench.runners.pt import TorchRunner, lacks_kernels

ENGINES = {"torch-compile": {"order": 3, "packages": ("torch",), "optional": True, "twin": "torch"}}

CACHE = "XBENCH_COMPILE_CACHE"
"""Environment variable: a folder in which every case has a compile cache of its own."""


class CompileRunner(TorchRunner):
    """``forward`` and ``objective`` under torch.compile; the optimizer as in eager torch.

    The backward pass is compiled with the objective (AOTAutograd). All settings are inductor's own.
    """

    def probe(self, device: str) -> dict[str, str]:
        """As for eager torch, and what inductor needs: a C++ compiler, on cuda Triton."""
        facts = super().probe(device)
        if device == "cuda":
            if not torch.utils._triton.has_triton():
                raise Unavailable(
                    "torch.compile needs Triton on cuda: it is not installed, or this GPU is too "
                    "old for it (compute capability below 7.0)"
                )
            return facts
        return {**facts, "compiler": compiler()}

    def load(self, work: Work) -> None:
        if root := os.environ.get(CACHE):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(root) / work.case.key)
            os.environ.pop("TRITON_CACHE_DIR", None)
        super().load(work)

    def define(self) -> None:
        super().define()
        self.call, self.objective = torch.compile(self.call), torch.compile(self.objective)

    compiles = True

    def cold(self) -> bool:
        """Whether inductor's cache holds no graph at all.

        With ``XBENCH_COMPILE_CACHE`` the cache is the case's own. The user's default one is shared:
        there, graphs of other models count as warm although they do not help.
        """
        return not any((Path(cache_dir()) / "fxgraph").glob("*"))

    @lacks_kernels
    def compile(self) -> None:
        """Call once, which traces and compiles; the state is put back.

        torch.compile has no step of its own for it. ``compile_s`` therefore holds one run too, and
        the first run that is timed after it is already a warm one.
        """
        self.run()
        self.reset()

    def effective_precision(self) -> str:
        """Inductor keeps what passes from one operator to the next inside a kernel in float32."""
        if self.work.case.precision in ("bf16", "fp16"):
            return "fp32 inside fused kernels"
        return super().effective_precision()

    def profile(self, steps: int) -> tuple[Profile, dict[str, float]]:
        """As for eager torch, of kernels that were compiled anew to name themselves to a profiler.

        Those are no part of what is timed: afterwards the step is compiled as before.
        """
        with config.patch({"cpp.enable_kernel_profile": True}):
            self.recompile()
            found = super().profile(steps)
        self.recompile()
        return found

    def operators(self, step: int) -> Operators:
        return Runner.operators(self, step)

    def recompile(self) -> None:
        """Forget what was compiled."""
        torch._dynamo.reset()
        self.define()


def compiler() -> str:
    """The C++ compiler that inductor uses. Raises Unavailable where it or a header is missing."""
    try:
        found = cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        tried = ", ".join(name for name in config.cpp.cxx if name)
        raise Unavailable(
            f"torch.compile needs a C++ compiler and {tried} does not run: install g++, or set CXX "
            "to another"
        ) from error
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise Unavailable(
            f"torch.compile needs the C headers of Python, and {headers} has no Python.h: install "
            "the development package of this Python (python3-dev)"
        )
    return found


def make(engine: str) -> CompileRunner:
    return CompileRunner(engine)
