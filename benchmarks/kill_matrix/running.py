"""Running the matrix: every fault against its requirement, every mutant against all of them."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from pathlib import Path

import msgspec
from pipeconform.reference_impl.mutants import Mutant

from benchmarks.kill_matrix.records import FaultRecord, MutantRecord, append, read
from benchmarks.kill_matrix.sweep import Question, nearest_first, questions, sweep
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge
from pipeconform.campaign.trial import Fault, Trial, try_fault
from pipeconform.case.focus import WHOLE, Focus
from pipeconform.errors import BadAdapterError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

__all__ = ["REFERENCE", "run_faults", "run_mutants"]

REFERENCE = "reference"

_NEAREST = {
    "backward": frozenset({Focus.GRAPHS}),
    "capture": WHOLE,
    "front_end": WHOLE,
    "metadata": frozenset({Focus.CHANGED, Focus.CHANGED_ONCE}),
    "operations": frozenset({Focus.BY_HAND, Focus.DISORDER, Focus.OUT_OF_ORDER}),
    "tracing": WHOLE,
}
"""What is asked first about mutants of modules that few cases reach; the rest is asked all the same."""

_TWICE = 1.5  # times the first list: more executions than that are those of both lists


def run_faults(chosen: Iterable[Fault], pools: Pools, path: Path) -> None:
    """Try the faults that `path` does not have yet."""
    done = read(path, FaultRecord)
    right = Executor(implementation=REFERENCE, description=describe(pools, REFERENCE), pools=pools)
    for fault in chosen:
        if fault.name in done:
            continue
        trial = try_fault(fault, pools)
        record = FaultRecord(
            name=fault.name,
            detected=trial.detected,
            control=_meets(right, trial),
            shown=trial.shown,
            message=trial.message,
            executions=trial.executions,
            seconds=trial.seconds,
        )
        append(record, path)
        word = "detected" if trial.detected else "NOT DETECTED"
        _say(f"{fault.name}: {word}, {trial.executions} executions, {trial.seconds:.1f} s")


def _meets(right: Executor, trial: Trial) -> bool:
    if trial.case is None:
        return False
    identifier = trial.fault.requirement
    execution = right.execute(trial.case, observe=JUDGEMENTS[identifier].observe)
    return judge(requirement(identifier), execution, right) == ()


def run_mutants(
    chosen: Iterable[Mutant], pools: Pools, path: Path, *, equivalent: Container[str] = ()
) -> None:
    """Judge the reference itself, then the mutants, as far as `path` does not have them yet.

    What survives the first list of questions is asked further ones, the nearest first, as many again; but for
    mutants that are proved `equivalent`, by name.
    """
    done = read(path, MutantRecord)
    first, *others = questions(describe(pools, REFERENCE).capabilities)
    further = [question for several in others for question in several]
    named = {REFERENCE: REFERENCE} | {one.name: one.reference for one in chosen}
    for name in [one for one in named if one not in done]:
        done[name] = _judged(name, named[name], _near(first, name), pools)
        _keep(done[name], path)
    for name in named:
        known = done[name]
        if known.killed or not known.loads or name in equivalent or known.executions > len(first) * _TWICE:
            continue
        again = _judged(name, named[name], _near(further, name)[: len(first)], pools)
        done[name] = msgspec.structs.replace(
            again,
            executions=known.executions + again.executions,
            seconds=known.seconds + again.seconds,
        )
        _keep(done[name], path)


def _near(asked: Iterable[Question], name: str) -> tuple[Question, ...]:
    return nearest_first(asked, _NEAREST.get(name.rpartition("_")[0], frozenset()))


def _keep(record: MutantRecord, path: Path) -> None:
    append(record, path)
    told = f"{record.requirement} {record.status}: {record.kind}" if record.killed else "survives"
    word = told if record.loads else "does not load"
    _say(f"{record.name}: {word}, {record.executions} executions, {record.seconds:.1f} s")


def _judged(name: str, reference: str, asked: tuple[Question, ...], pools: Pools) -> MutantRecord:
    begun = time.monotonic()
    try:
        found = sweep(reference, asked, pools)
    except BadAdapterError as error:
        return MutantRecord(name=name, loads=False, message=str(error))
    seconds, killed = round(time.monotonic() - begun, 3), found.killed
    if killed is None:
        return MutantRecord(name=name, loads=True, executions=found.executions, seconds=seconds)
    return MutantRecord(
        name=name,
        loads=True,
        requirement=killed.requirement,
        status=killed.status,
        kind=killed.kind,
        message=killed.message,
        executions=found.executions,
        seconds=seconds,
    )


def _say(text: str) -> None:
    print(text, flush=True)
