"""Charges the processor time of this process and of those that it forks to what their stacks are doing.

`benchmarks/where_time_goes.py` puts this folder on PYTHONPATH, so that Python imports this file when it starts; nothing
else does. Every few milliseconds of processor time a signal interrupts the main thread. What the kernel has
counted since the last one, user and system, is charged to the innermost known frame (`LABELS`); garbage collection is
charged to itself, and the other threads' time to them. So the charges of a process add up to the kernel's count, and
only their distribution is a sample.

The charges are in a file that is mapped into memory, because rank processes end by SIGKILL.
"""

import atexit
import gc
import mmap
import os
import resource
import signal
import struct
import sys

INTERVAL = 0.004
"""Seconds of processor time between two looks; the kernel's clock allows no shorter ones on most machines."""
FOLDER = os.environ.get("PIPECONFORM_SAMPLED", "")
NAMED = struct.Struct("<16s")
"""The kind of the process; doubles follow, four for each label."""
OTHERS = ("garbage collection", "other threads", "anything else")

_BUILDING = (
    "__init__",
    "build_stage",
    "module_of",
    "stage_for",
    "build_whole",
    "_estrange",
    "tie",
    "composed",
)
"""What of `case/build` makes modules; the rest are their forwards and backwards, a part of the step."""
# (part of a file's path, functions or None for all, what their time is charged to); the first match counts
LABELS = (
    ("<frozen importlib", None, "imports"),
    ("pipeconform/case/build/data.py", ("loss",), None),
    ("pipeconform/case/build/data.py", None, "batches"),
    ("pipeconform/case/build/foreign.py", ("batch_for", "other"), "batches"),
    ("pipeconform/case/build/", _BUILDING, "models"),
    ("pipeconform/execute/groups.py", None, "groups"),
    ("pipeconform/execute/built.py", None, "observation"),
    ("pipeconform/execute/planning.py", None, "models"),
    ("pipeconform/execute/steps.py", ("run_step",), "observation"),
    ("pipeconform/execute/steps.py", ("_data_for",), "batches"),
    ("pipeconform/execute/steps.py", None, "observation"),
    ("pipeconform/execute/answers.py", ("run",), "engine's step"),
    ("pipeconform/execute/answers.py", ("__init__",), "engine's building"),
    ("pipeconform/execute/", None, "the case's frame"),
    ("pipeconform/observe/", None, "observation"),
    ("pipeconform/ranks/recording/", None, "observation"),
    ("pipeconform/adapters/", ("run", "apply"), "engine's step"),
    ("pipeconform/adapters/", None, "engine's building"),
    ("pipeconform/reference_impl/", ("run", "apply", "step"), "engine's step"),
    ("/reference_impl/adapter.py", ("build", "close"), "engine's building"),
    ("/reference_impl/", ("run", "apply"), "engine's step"),
    ("torch/distributed/pipelining/schedules.py", ("step", "eval"), "engine's step"),
    ("pipeconform/oracle/", None, "oracle"),
    ("pipeconform/campaign/judging.py", None, "judging"),
    ("pipeconform/campaign/executor.py", None, "transport"),
    ("pipeconform/campaign/store.py", None, "transport"),
    ("pipeconform/campaign/corpus.py", None, "drawing"),
    ("pipeconform/campaign/simplify.py", None, "drawing"),
    ("pipeconform/case/draw/", None, "drawing"),
    ("pipeconform/case/simpler/", None, "drawing"),
    ("pipeconform/campaign/", None, "the campaign"),
    ("pipeconform/judge/", None, "judging"),
    ("pipeconform/bounds/", None, "judging"),
    ("/suites/", None, "judging"),
    ("pipeconform/ranks/evidence.py", None, "watching ranks"),
    ("pipeconform/ranks/", None, "transport"),
    ("pipeconform/report/", None, "reporting"),
    ("pipeconform/commands/", None, "reporting"),
    ("pipeconform/session/", None, "reporting"),
)
NAMES = tuple(dict.fromkeys((*(label for *_, label in LABELS if label), *OTHERS)))
SIZE = NAMED.size + 8 * 4 * len(NAMES)


def label_of(code):
    """The index of the label that a frame's code belongs to; None if its caller's counts."""
    for part, functions, label in LABELS:
        if part in code.co_filename and (functions is None or code.co_name in functions):
            return None if label is None else NAMES.index(label)
    return None


class Charges:
    """The charges of this process: for each label user and system seconds of the main thread, and of the others."""

    def __init__(self, kind):
        with open(os.path.join(FOLDER, f"{os.getpid()}-{kind}"), "w+b") as file:
            file.truncate(SIZE)
            self._mapped = mmap.mmap(file.fileno(), SIZE)
        NAMED.pack_into(self._mapped, 0, kind.encode())
        self._seconds = memoryview(self._mapped)[NAMED.size :].cast("d")
        self._main = self._whole = (0.0, 0.0)
        self._codes = {}
        signal.signal(signal.SIGPROF, lambda _, frame: self.charge(self._doing(frame)))
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def charge(self, label):
        """Charge what was used since the last call."""
        main, whole = _used(resource.RUSAGE_THREAD), _used(resource.RUSAGE_SELF)
        own = [now - before for now, before in zip(main, self._main, strict=True)]
        at = 4 * label
        for index in range(2):
            self._seconds[at + index] += own[index]
            others = whole[index] - self._whole[index] - own[index]
            self._seconds[4 * NAMES.index("other threads") + 2 + index] += others
        self._main, self._whole = main, whole

    def end(self):
        """Stop looking: the interpreter is about to restore signals."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        gc.callbacks.clear()
        self.charge(NAMES.index("anything else"))

    def _doing(self, frame):
        while frame is not None:
            code = frame.f_code
            if code not in self._codes:
                self._codes[code] = label_of(code)
            if self._codes[code] is not None:
                return self._codes[code]
            frame = frame.f_back
        return NAMES.index("anything else")

    def collecting(self, phase, about):
        """Charge a collection of all generations but the youngest, whose collections are too short to look at."""
        if about["generation"]:
            frame = sys._getframe(1)
            self.charge(self._doing(frame) if phase == "start" else NAMES.index("garbage collection"))


def _used(whom):
    used = resource.getrusage(whom)
    return used.ru_utime, used.ru_stime


def _kind():
    """What this process is, from what Python was started with, or from the frames that a fork left."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_fork" and "spec" in frame.f_locals:
            return "oracle" if frame.f_locals["spec"].backend is None else "rank"
        frame = frame.f_back
    return "fork server" if "pipeconform.ranks.server" in " ".join(sys.orig_argv) else "controller"


def _begin():
    charges = Charges(_kind())
    gc.callbacks[:] = [charges.collecting]
    atexit.register(charges.end)  # rank processes end without it


if FOLDER:
    _begin()
    os.register_at_fork(after_in_child=_begin)
