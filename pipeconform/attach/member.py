"""On an agent: one rank process, from the order to fork it to its end, and the reports on it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipeconform.attach.link import MESSAGE_LIMIT
from pipeconform.attach.messages import Ask, Fork, Gone, Hand, Said, Seen, Told, Word
from pipeconform.errors import PoolError
from pipeconform.ranks.channel import Frame
from pipeconform.ranks.evidence import Look, look, progressed
from pipeconform.ranks.forkserver import ForkServer, tail
from pipeconform.ranks.questions import Question
from pipeconform.ranks.stacks import Dump
from pipeconform.ranks.verdict import Raised
from pipeconform.ranks.wire import Kind, RankSpec

__all__ = ["Member"]

_GROUP_TIMEOUT = 24 * 3600.0  # seconds; longer than any task may last, so that only the pool decides
_OUTPUT_LIMIT = 32 << 20  # bytes of output kept of a rank that does not stop printing
_ANSWER_LIMIT = MESSAGE_LIMIT - (1 << 16)


class Member:
    """A rank process forked from `server` as `order` says, on `device`; ranks meet at `listen`."""

    def __init__(self, server: ForkServer, order: Fork, *, device: str, listen: str) -> None:
        self.server = server
        self.number = order.member
        self._folder = Path(tempfile.mkdtemp(prefix="member-", dir=server.folder))
        self._output, self._stacks, self._standing = map(
            self._folder.joinpath, ("output", "stacks", "standing")
        )
        self._output.touch()
        self._stacks.touch()
        self._group = server.fork(
            [
                RankSpec(
                    rank=order.rank,
                    world_size=order.world_size,
                    device=device,
                    backend=order.backend,
                    store="",
                    output=str(self._output),
                    stacks=str(self._stacks),
                    standing=str(self._standing),
                    variables=tuple(server.environment.effective()),
                    group_timeout=_GROUP_TIMEOUT,
                    listen=listen,
                )
            ]
        )
        self._channel = self._group.channels[0]
        self._task = 0
        self._began = time.monotonic()
        self._look: Look | None = None
        self._progressed = 0
        self._asked: list[tuple[int, Question | Dump]] = []
        self.over = False
        """Whether its end has been reported."""

    @property
    def busy(self) -> bool:
        """Whether it runs a task."""
        return self._task > 0 and not self.over

    @property
    def asked(self) -> bool:
        """Whether an answer of its rank is awaited."""
        return bool(self._asked)

    def hand(self, order: Hand) -> None:
        """Pass frames on to the rank."""
        if order.task:
            self._task, self._began = order.task, time.monotonic()
            self._look, self._progressed = None, 0
        self._channel.send([order.frames])

    def ask(self, order: Ask) -> None:
        """Ask the rank what it is doing, or for its stacks."""
        if order.stacks:
            self.server.signal(self._group, ranks=(0,), signum=signal.SIGUSR1)
            self._asked.append((order.ticket, Dump({0: self._stacks})))
        else:
            question = Question(self.server, self._group, paths={0: self._standing})
            self._asked.append((order.ticket, question))

    def turn(self) -> Iterator[Word]:
        """What has happened since the last call, as reports to the controller."""
        exited = self._group.exits.get(0)
        if exited is not None:
            self._channel.pull(everything=True)  # an answer before its death counts
        while self._channel.frames and self._group.pids is not None:
            yield self._said(self._channel.frames.popleft(), pid=self._group.pids[0])
        if self._channel.wrong and self.busy:
            frame = Frame(number=self._task, moment=time.monotonic(), kind=Kind.RAISED, body=b"")
            yield self._said(frame, pid=0, refused=f"the rank sent {self._channel.wrong}")
        for one in [one for one in self._asked if one[1].over]:
            self._asked.remove(one)
            yield self._told(*one)
        why = "" if exited is not None else self._unserved()
        if not self.over and (exited is not None or why):
            self.over = True
            code, moment = (0, time.monotonic()) if exited is None else (exited.code, exited.moment)
            after, output = moment - self._began, "" if why else tail(self._output)
            yield Gone(member=self.number, code=code, after=after, output=output, lost=why)

    def _unserved(self) -> str:
        """Why its fork server can report no more on it; empty while it can."""
        try:
            self.server.require_alive()
        except PoolError as error:
            return str(error)
        return self._group.failure or ""

    def _said(self, frame: Frame, *, pid: int, refused: str = "") -> Said:
        kind, body = frame.kind, frame.body
        if kind == Kind.UNFIT and (printed := tail(self._output)):
            body += f"\nit printed:\n{printed}".encode()
        if len(body) > _ANSWER_LIMIT:
            refused = f"the answer has {len(body)} bytes; {_ANSWER_LIMIT} can be sent"
        if refused:
            kind = Kind.RAISED
            body = msgspec.msgpack.encode(Raised(type="pipeconform.AnswerRefused", message=refused))
        if frame.number == self._task:
            self._task = 0
        after = frame.moment - self._began
        return Said(self.number, pid=pid, number=frame.number, kind=kind, body=body, after=after)

    def _told(self, ticket: int, asked: Question | Dump) -> Told:
        if isinstance(asked, Dump):
            return Told(self.number, ticket, body=asked.texts()[0].encode(), output=tail(self._output))
        found = asked.answers().get(0)
        body = b"" if found is None else msgspec.json.encode(found.shifted(-self._began))
        return Told(self.number, ticket, body=body)

    def look(self) -> Seen:
        """Look at the rank, and count it if it has progressed since the last look."""
        pids = self._group.pids
        now = None if pids is None else look(pids[0])
        before, self._look = self._look, now
        if now is None or before is None or progressed(before, after=now):
            self._progressed += 1
        with contextlib.suppress(OSError):  # a task may delete any file
            if self._output.stat().st_size > _OUTPUT_LIMIT:
                self._output.write_bytes(b"")
        return Seen(member=self.number, progressed=self._progressed, stopped=now is not None and now.stopped)

    def end(self) -> None:
        """Kill the process and forget it."""
        self.over = True
        self._asked.clear()
        self.server.discard(self._group)
        shutil.rmtree(self._folder, ignore_errors=True)
