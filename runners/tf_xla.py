"""TensorFlow compiled by XLA: the same definitions, with ``jit_compile=True``."""

from __future__ import annotations

from xbench.result import Operators
from xbench.runners.base import Runner, Work
from xbench.runners.tf import TensorFlowRunner, lacks_kernels

ENGINES = {
    "tf-xla": {"order": 4, "packages": ("tensorflow", "keras"), "optional": True, "twin": "tf"}
}


class XlaRunner(TensorFlowRunner):
    """Every tf.function is one XLA cluster: the whole step, backward and optimizer included.

    XLA compiles in every process: TensorFlow's persistent cache for the CPU is off by default, and
    what it reads back warns of SIGILL for its own tuning flags. So ``compile_s`` is what XLA costs
    every time, and ``cold`` is always false.
    """

    jit = True

    def load(self, work: Work) -> None:
        super().load(work)
        # A model that needs another gradient where XLA lacks a kernel looks at this.
        self.model.xla = True

    def operators(self, step: int) -> Operators:
        return Runner.operators(self, step)

    @lacks_kernels
    def compile(self) -> None:
        """Trace, and call once: XLA compiles at the first call. The state is put back."""
        super().compile()
        self.run()
        self.reset()


def make(engine: str) -> XlaRunner:
    return XlaRunner(engine)
