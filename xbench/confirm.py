"""A closer look at a case that was rejected: is its graph another function, or an operator wrong?

Its graph is evaluated in float64, also under its own choices; then its operators are run alone, on
the inputs that the reference has for them. Each takes fresh processes, and is done on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from xbench import registry
from xbench.agree import NARROW, Pair, Verdicts, in_double, side_of
from xbench.jobs import Job, Report
from xbench.launch import Launcher
from xbench.progress import Progress
from xbench.references import References
from xbench.result import Agreement
from xbench.spec import Case
from xbench.verdict import AT_A_BOUNDARY, NOTHING, Choices, Confirmation, Side

CONFIRM_S = 6.0
"""Rough seconds per closer look, to scale the progress bar."""
EXPECTED_S = 300.0
"""What float64 may take for the operators of a graph; those that remain are not checked."""
MakeJob = Callable[..., Job]
"""``(kind, case, **fields)``: a job on a case with its inputs, in a folder of its own."""


class Confirmer:
    """The closer looks of one run.

    ``job`` makes jobs, ``graph`` finds the file of a case, ``definition`` what the engine of a case
    without one computes in float64 from the same definition.
    """

    def __init__(
        self,
        launcher: Launcher,
        references: References,
        job: MakeJob,
        graph: Callable[[Case], str | None],
        definition: Callable[[Case], Side | None],
    ) -> None:
        self.launcher = launcher
        self.references = references
        self.job = job
        self.graph = graph
        self.definition = definition

    def look_closer(
        self,
        verdicts: Callable[[], Verdicts],
        confirmations: dict[str, Confirmation],
        progress: Progress,
    ) -> None:
        """Look at every case that ``verdicts`` rejects: at its graph, then at its operators.

        What is found goes into ``confirmations``, by case key; ``verdicts`` is asked again once
        the graphs are known, since a graph that is at fault excuses its operators.
        """
        rejected = verdicts().rejected()
        progress.plan(2 * CONFIRM_S * len(rejected))
        for key, found in rejected.items():
            case = found[0][0].a
            with progress.task(f"looking closer at the graph of {case.label}", CONFIRM_S):
                references = {pair.reference.key: pair for pair, _ in found}
                confirmations[key] = self.graphs(case, list(references.values()))
        for key, found in verdicts().rejected().items():
            steps = {step for _, item in found if by_rounding(item) for step in steps_of(item)}
            if not steps:
                continue
            case = found[0][0].a
            with progress.task(f"checking the operators of {case.label} one by one", CONFIRM_S):
                known = confirmations.get(key, NOTHING)
                confirmations[key] = self.operators(case, known, tuple(sorted(steps)))

    def graphs(self, case: Case, pairs: Sequence[Pair]) -> Confirmation:
        """What the graph of a case computes in float64; nothing where it has no graph.

        Also what the references of ``pairs`` compute where every index is chosen as the case chose.
        """
        graph = self.graph(case)
        if graph is None:
            return Confirmation(graph=self.definition(case))
        of = in_double(case)
        report = self.references.run(self.observing(of, graph))
        if not report.ok:
            return Confirmation(missing=f"its graph has no float64 evaluation: {report.reason}")
        found = Confirmation(graph=side_of(of, report))
        chosen = self.launcher.run(self.job("choices", case, graph=graph))
        if not chosen.ok:
            why = f"its choices could not be seen: {chosen.reason}"
            return msgspec.structs.replace(found, missing=why)
        if "choices" not in chosen.facts:
            return found
        for pair in pairs:
            found = self.under_choices(of, pair, chosen.folder, found)
        return found

    def observing(self, of: Case, graph: str, **more: object) -> Job:
        """A job that evaluates the graph of a case in float64."""
        return self.job("observe", of, graph=graph, parameter_set="probe", **more)

    def under_choices(
        self, own: Case, pair: Pair, folder: str, found: Confirmation
    ) -> Confirmation:
        """Add a reference under the choices that a case left in ``folder``: ties, or faults.

        A reference that has no graph is stood in for by ``own``, the graph of the case.
        """
        reference = pair.reference
        narrow = "" if pair.narrow is None else pair.narrow.options[NARROW]
        graph = self.graph(reference)
        of = own if graph is None else reference
        graph = graph or self.graph(own)
        assert graph is not None
        report = self.launcher.run(self.observing(of, graph, against=folder, narrow=narrow))
        if not report.ok:
            why = f"{of.title} under its choices: {report.reason}"
            missing = "; ".join(filter(None, [found.missing, why]))
            return msgspec.structs.replace(found, missing=missing)
        choices = Choices(
            side=side_of(of, report),
            ties=int(report.facts.get("ties", "0")),
            faults=report.facts.get("faults", ""),
            stands_in=of == own and reference != own,
        )
        return msgspec.structs.replace(found, choices={**found.choices, reference.key: choices})

    def operators(
        self, case: Case, found: Confirmation, steps: tuple[int, ...] = ()
    ) -> Confirmation:
        """Add the operators of a case, each held to its own bound; in training, of some steps."""
        if registry.engine(case.engine).onnx:
            report = self.of_graph(case)
        else:
            report = self.launcher.run(self.job("operators", case, parameter_set="probe", at=steps))
        if not report.ok:
            why = f"its operators could not be checked one by one: {report.reason}"
            missing = "; ".join(filter(None, [found.missing, why]))
            return msgspec.structs.replace(found, missing=missing)
        return msgspec.structs.replace(found, operators=report.operators)

    def of_graph(self, case: Case) -> Report:
        """The nodes that really run, from what float64 says of the inputs of each."""
        graph = self.graph(case)
        segments = self.launcher.run(self.job("segments", case, graph=graph))
        if not segments.ok:
            return segments
        source = segments.facts["source"]
        expected = self.launcher.run(
            self.job(
                "expected",
                in_double(case),
                graph=source,
                against=segments.folder,
                deadline_s=EXPECTED_S,
            )
        )
        if not expected.ok:
            return expected
        return self.launcher.run(self.job("operators", case, graph=graph, against=segments.folder))


def steps_of(agreement: Agreement) -> set[int]:
    """The training step of a rejected agreement whose operators are looked at.

    That of the tensor which decided; of a trajectory the first, where all began alike.
    """
    parts = agreement.evidence.tensor.split("/") if agreement.evidence is not None else []
    return {int(parts[1])} if parts and parts[0] in ("loss", "gradients") else {0}


def by_rounding(agreement: Agreement) -> bool:
    """Whether a rejection may be rounding: the graph is not at fault."""
    evidence = agreement.evidence
    if evidence is None or evidence.decided_by.startswith("its graph"):
        return False
    return agreement.tolerance is not None or AT_A_BOUNDARY in evidence.decided_by
