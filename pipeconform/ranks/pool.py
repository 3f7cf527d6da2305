"""A pool of rank processes, kept warm between tasks and replaced after every failure.

``pool.start(...)`` hands a task to all ranks; ``pending.wait()`` returns exactly one verdict per rank. Unless every
rank returned, the whole group is killed and formed anew, because half a process group is useless.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence

import msgspec

from pipeconform.errors import PoolError
from pipeconform.ranks.answered import UnreadableError, decoded, not_an_answer
from pipeconform.ranks.channel import Frame
from pipeconform.ranks.protocols import Eyes, RankCrew
from pipeconform.ranks.questions import Prover
from pipeconform.ranks.standing import Standing
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, Verdict, VerdictVector
from pipeconform.ranks.watch import Limits, Watch
from pipeconform.ranks.wire import Kind

__all__ = ["Pending", "Pool"]

_ASKING = 0.005  # seconds between two looks for an answer
_MUTE_LIMIT = 1.0  # seconds between a closed connection and the report that its process ended


class Pool:
    """The ranks of ``crew``, as processes of this machine or elsewhere.

    ``idle_limit`` and ``idle_limit_after_failure`` are seconds; see ``pipeconform.ranks.watch.Limits``.
    The processes start at once, in the background; the first task's start, or :meth:`wait_until_formed`, raises their
    failures.

    Raises:
        PoolError: the crew cannot be formed.
    """

    def __init__(
        self, crew: RankCrew, *, idle_limit: float = 2.0, idle_limit_after_failure: float = 0.2
    ) -> None:
        self.size = crew.size
        self.idle_limit = idle_limit
        self.idle_limit_after_failure = idle_limit_after_failure
        self._crew = crew
        self._end = weakref.finalize(self, crew.discard)
        self._task = 0
        self._pending: weakref.ref[Pending] | None = None
        crew.form()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the present ranks, in rank order."""
        self.wait_until_formed()
        pids = self._crew.group.pids
        assert pids is not None, "a rank that is ready was forked"
        return pids

    def wait_until_formed(self) -> tuple[dict[str, str | None], ...]:
        """Wait until all ranks are set up; return the environment variables that each rank sees.

        Raises:
            PoolError: a rank could not be started or set up; its output is quoted.
            VariantError: a rank does not see a variable of the environment's variant.
        """
        self._require_open()
        if self._pending is None or self._pending() is None:
            self._crew.form()
        try:
            self._crew.wait_until_formed()
        except BaseException:
            self._crew.discard()
            raise
        return tuple(self._crew.seen[rank] for rank in range(self.size))

    def start(
        self,
        task: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        time_limit: float,
        failure_expected: bool = False,
    ) -> Pending:
        """Hand ``task`` ("module:function") to every rank and return without waiting for it.

        ``payloads`` is one for all ranks or one per rank; ``time_limit`` is seconds from now. With
        ``failure_expected`` a rank that answers may have failed, so that others may wait for it in vain. If ranks
        are still being formed, this waits for them first.

        Raises:
            PoolError: the pool is closed, its processes cannot be formed, or its last task still runs.
            VariantError: a rank does not see a variable of the environment's variant.
        """
        self._require_open()
        parts = [payloads] * self.size if isinstance(payloads, bytes) else list(payloads)
        if len(parts) != self.size:
            raise ValueError(f"{self.size} ranks need one payload or {self.size}, not {len(parts)}")
        module, _, function = task.partition(":")
        if not module or not function:
            raise ValueError(f"a task is named 'module:function', not {task!r}")
        if self._pending is not None:
            unfinished = self._pending()
            if unfinished is not None:
                raise PoolError(f"the pool still runs {unfinished.task!r}; wait for it or cancel it first")
            self._crew.discard()  # nothing refers to that task any more
        # A rank that fails at once must not disturb peers that still connect to it.
        self.wait_until_formed()
        self._task += 1
        limits = Limits(
            time=time_limit, idle=self.idle_limit, idle_after_failure=self.idle_limit_after_failure
        )
        pending = Pending(
            self,
            crew=self._crew,
            task=task,
            number=self._task,
            limits=limits,
            failure_expected=failure_expected,
        )
        self._pending = weakref.ref(pending)
        self._crew.wake()
        for rank, payload in enumerate(parts):
            self._crew.hand(rank, number=self._task, name=task, payload=payload)
        return pending

    def run(
        self,
        task: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        time_limit: float,
        failure_expected: bool = False,
    ) -> VerdictVector:
        """Start a task and wait for its verdicts; see :meth:`start` and :meth:`Pending.wait`."""
        return self.start(task, payloads, time_limit=time_limit, failure_expected=failure_expected).wait()

    def rest(self) -> None:
        """Stop the rank processes until the next task, unless one runs; see ``pipeconform.ranks.crew.Crew.rest``."""
        if self._end.alive and (self._pending is None or self._pending() is None):
            self._crew.rest()

    def restart(self) -> None:
        """Replace all rank processes with new ones.

        Raises:
            PoolError: the pool is closed.
        """
        self._require_open()
        self._crew.discard()
        self._crew.form()

    def close(self, *, wait: bool = False) -> None:
        """End the rank processes; with `wait`, return when they are gone. Closing twice is harmless."""
        if wait and self._end.alive:
            self._crew.discard(wait=True)
        self._end()

    def _require_open(self) -> None:
        if not self._end.alive:
            raise PoolError("the pool is closed")

    def _finish(self, pending: Pending) -> None:
        if self._pending is not None and self._pending() is pending:
            self._pending = None


class Pending:
    """A running task; :meth:`wait` returns its verdicts."""

    def __init__(
        self,
        pool: Pool,
        *,
        crew: RankCrew,
        task: str,
        number: int,
        limits: Limits,
        failure_expected: bool = False,
    ) -> None:
        self.task = task
        self._failure_expected = failure_expected
        self._pool = pool
        self._crew = crew
        self._group = crew.group
        self._number = number
        self._limits = limits
        self._started = time.monotonic()
        self._verdicts: dict[int, Verdict] = {}
        self._muted: dict[int, float] = {}
        self._vector: VerdictVector | None = None

    def wait(self) -> VerdictVector:
        """Wait for all ranks, at most until the time limit; a second call returns the same vector.

        Other pools of the same server move on meanwhile. If not every rank returned, the rank group has been
        discarded when this returns, and the next one is being formed.

        Raises:
            PoolError: the fork server ended, or the task was cancelled.
        """
        if self._vector is not None:
            return self._vector
        if self._group.discarded:
            raise PoolError(f"{self.task!r} was cancelled, or its pool was closed")
        try:
            self._judge()
        except BaseException:  # Ctrl-C above all: discard the ranks, the pool can form others
            self.cancel()
            raise
        self._crew.show_output(last=True)
        self._pool._finish(self)
        self._vector = VerdictVector(tuple(self._verdicts[rank] for rank in range(self._group.size)))
        if not self._vector.ok:
            self._crew.discard(wait=True)
            self._form_ahead()
        return self._vector

    def cancel(self) -> None:
        """Give up: end the ranks if the task is not finished; the pool forms others for its next task."""
        if self._vector is None and not self._group.discarded:
            self._crew.show_output(last=True)
            self._crew.discard()
        self._pool._finish(self)

    def _form_ahead(self) -> None:
        with contextlib.suppress(PoolError):  # this task has its verdicts; the next one raises the error
            self._crew.form()

    def _judge(self) -> None:
        watch = Watch(self._limits, started=self._started, eyes=(eyes := self._crew.eyes()))
        prover = Prover(self._crew.ask)
        failure: str | None = None
        while True:
            self._collect()
            waiting = [rank for rank in range(self._group.size) if rank not in self._verdicts]
            if not waiting:
                return
            if self._crew.in_debugger() in waiting:
                watch.hold()
                self._crew.step(watch.interval)
                self._crew.require_alive()
                continue
            failure = failure or self._first_failure()
            self._crew.show_output()
            self._crew.trim_output(waiting)
            why = watch.check(
                waiting,
                answering=any(self._group.channels[rank].receiving for rank in waiting),
                moved=sum(self._group.channels[rank].moved for rank in waiting),
                failure=failure,
            )
            lost = next((v.lost for v in self._verdicts.values() if isinstance(v, Died) and v.lost), "")
            if lost:  # answers of the others would say nothing about the task
                why = f"not waited for any longer: {lost}"
            if why is None and any(self._mute(rank) for rank in waiting):
                why = f"rank {next(filter(self._mute, waiting))} closed its connection without answering"
            standings = None if why or failure else prover.check(waiting, idle=watch.idle)
            if standings is not None:
                why = "every rank waits for one that waits too"
            if why is not None:
                # what came while this process was held up, or waited for agents, was not late
                known = len(self._verdicts)
                self._crew.step(0.0)
                self._collect()
                if len(self._verdicts) > known:
                    continue
                self._give_up(waiting, why, eyes, standings)
                return
            self._crew.step(min(watch.interval, _ASKING) if prover.asking else watch.interval)
            self._crew.require_alive()

    def _collect(self) -> None:
        """Turn what has arrived into verdicts."""
        for rank, channel in enumerate(self._group.channels):
            if rank in self._verdicts:
                continue
            gone = self._group.exits.get(rank)
            if gone is not None:
                channel.pull(everything=True)  # an answer before its death counts
            while channel.frames and rank not in self._verdicts:
                answer = channel.frames.popleft()
                if answer.number == self._number:  # anything else belongs to an earlier task
                    self._verdicts[rank] = self._read(answer)
            if channel.wrong and rank not in self._verdicts:
                self._verdicts[rank] = not_an_answer(channel.wrong, after=time.monotonic() - self._started)
            if gone is not None and rank not in self._verdicts:
                self._verdicts[rank] = Died.of(
                    gone.code,
                    output=self._crew.printed(rank),
                    after=gone.moment - self._started,
                    lost=gone.lost,
                )

    def _read(self, answer: Frame) -> Verdict:
        now = time.monotonic()
        after = (answer.moment if self._started <= answer.moment <= now else now) - self._started
        if answer.kind == Kind.BYTES:
            return Returned(value=answer.body, after=after)
        if answer.kind != Kind.RAISED:
            return not_an_answer(f"a frame of kind {answer.kind.name}", after=after)
        try:
            return msgspec.structs.replace(decoded(answer.body, Raised), after=after)
        except UnreadableError as error:
            return not_an_answer(str(error), after=after)

    def _first_failure(self) -> str | None:
        """Name the first rank that raised or died: the reason to give up the others."""
        failed = [(v.after, rank, v) for rank, v in self._verdicts.items() if not isinstance(v, Returned)]
        if not failed:
            answered = sorted(self._verdicts) if self._failure_expected else ()
            return f"rank {answered[0]} ended" if answered else None
        _, rank, verdict = min(failed, key=lambda entry: entry[:2])
        return f"rank {rank} died ({verdict.how})" if isinstance(verdict, Died) else f"rank {rank} raised"

    def _mute(self, rank: int) -> bool:
        """Whether ``rank`` is alive but has closed its connection."""
        if not self._group.channels[rank].ended:
            return False
        return time.monotonic() - self._muted.setdefault(rank, time.monotonic()) > _MUTE_LIMIT

    def _give_up(
        self, waiting: Sequence[int], why: str, eyes: Eyes, standings: dict[int, Standing] | None
    ) -> None:
        now = time.monotonic()
        seconds = now - self._started
        able = [rank for rank in waiting if not eyes.stopped(rank)]
        printed = {rank: self._crew.printed(rank) for rank in waiting}
        question = self._crew.ask(able) if standings is None else None
        stacks = self._crew.stacks(able)
        self._crew.trim_output(waiting)  # they may still be printing, and what is asked takes a while
        if question is not None:
            standings = question.wait()
            self._crew.trim_output(waiting)
        for rank in waiting:
            held = eyes.stopped(rank)
            standing = (standings or {}).get(rank, Standing())
            wait = standing.wait
            self._verdicts[rank] = Stuck(
                seconds=seconds,
                why=f"{why}; it is stopped by a signal" if held else why,
                doing=standing.doing,
                waits="" if wait is None else wait.words,
                waits_for=() if wait is None else wait.peers,
                stage=None if wait is None else wait.stage,
                microbatch=None if wait is None else wait.microbatch,
                flights=tuple(map(str, standing.flights)),
                waited=max(0.0, now - standing.since) if wait is not None and standing.since else None,
                stack=stacks.get(rank, ""),
                output=self._crew.printed(rank) or printed[rank],
            )
