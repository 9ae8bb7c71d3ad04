"""What an ONNX Runtime session chose: indices of ArgMax and TopK, and the values they are of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx

from xbench import tensors
from xbench.runners.base import Work
from xbench.runners.graph.choices import expose, names
from xbench.runners.ort import OrtRunner
from xbench.runners.ort_session import opened, providers, session_options

CHOICES, VALUES = "choices.json", "choices.npz"


def choices(work: Work, folder: Path) -> int:
    """Run the case with its choices as further outputs, and leave them in ``folder``.

    ``choices.json`` lists them, ``choices.npz`` has ``K/index`` and ``K/values`` of the first
    batch. Returns how many there are: nothing is left where there are none. The further outputs
    may keep ONNX Runtime from fusing around them. Raises as opening a session does.
    """
    runner = OrtRunner(work.case.engine)
    runner.work = work
    source = runner.graph_of(work)
    model = onnx.load(str(source), load_external_data=False)
    found = expose(model)
    if not found:
        return 0
    case = work.case
    options = session_options(case.threads, case.options)
    # The file's own data stays where it is: the model is opened from memory.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(source.parent)
    )
    asked = providers(case.device, case.options)
    session = runner.on_device(lambda: opened(model.SerializeToString(), options, asked))
    feeds = {
        spec.name: runner.native(spec, work.batches[0][spec.name])
        for spec in work.spec.inputs(work.config)
    }
    wanted = [name for number in range(len(found)) for name in names(number)]
    values = session.run(wanted, feeds)
    kinds = ("index", "values")
    arrays = {
        f"{place // 2}/{kinds[place % 2]}": np.asarray(value) for place, value in enumerate(values)
    }
    tensors.save(folder / VALUES, arrays)
    (folder / CHOICES).write_bytes(msgspec.json.encode(found))
    return len(found)
