"""On an agent: one rank process, from the order to fork it to its end, and the reports on it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pipeconform.attach.link import MESSAGE_LIMIT
from pipeconform.attach.messages import (
    Answer,
    Fork,
    Gone,
    Ready,
    Seen,
    Stacks,
    Standing,
    StoreAt,
    Unfit,
    Word,
)
from pipeconform.errors import PoolError
from pipeconform.ranks.channel import Frame
from pipeconform.ranks.evidence import Look, look, progressed
from pipeconform.ranks.forkserver import ForkServer, tail
from pipeconform.ranks.questions import Question
from pipeconform.ranks.stacks import Dump
from pipeconform.ranks.verdict import Raised
from pipeconform.ranks.wire import Address, Kind, RankSpec, frame

__all__ = ["Member"]

_OUTPUT_LIMIT = 32 << 20  # bytes of output kept of a rank that does not stop printing
_ANSWER_LIMIT = MESSAGE_LIMIT - (1 << 16)


class Member:
    """A rank process forked from `server` as `order` says, on `device`; ranks meet at `listen`."""

    def __init__(self, server: ForkServer, order: Fork, *, device: str, listen: str) -> None:
        self.server = server
        self.number = order.member
        self._folder = Path(tempfile.mkdtemp(prefix="member-", dir=server.folder))
        self._output, self._stacks = self._folder / "output", self._folder / "stacks"
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
                    standing=str(self._folder / "standing"),
                    variables=tuple(server.environment.effective()),
                    group_timeout=order.group_timeout,
                    listen=listen,
                )
            ]
        )
        self._channel = self._group.channels[0]
        self._seen: dict[str, str | None] | None = None
        self._ready = False
        self._task: int | None = None
        self._began = time.monotonic()
        self._look: Look | None = None
        self._progressed = 0
        self._asked: list[tuple[Question | Dump, Callable[[], Word]]] = []
        self.over = False
        """Whether its end has been reported."""

    @property
    def busy(self) -> bool:
        """Whether it runs a task."""
        return self._task is not None and not self.over

    @property
    def asked(self) -> bool:
        """Whether an answer of its rank is awaited."""
        return bool(self._asked)

    def meet(self, host: str, port: int) -> None:
        """Tell the rank where rank 0 waits for it."""
        body = msgspec.msgpack.encode(Address(host=host, port=port))
        self._channel.send([frame(0, kind=Kind.STORE, length=len(body)) + body])

    def run(self, number: int, name: str, payload: bytes) -> None:
        """Hand a task to the rank."""
        self._task, self._began = number, time.monotonic()
        self._look, self._progressed = None, 0
        title = name.encode()
        head = frame(number, kind=Kind.NAME, length=len(title)) + title
        self._channel.send([head + frame(number, kind=Kind.TASK, length=len(payload)), payload])

    def ask_standing(self, ticket: int) -> None:
        """Ask the rank what it is doing."""
        question = Question(self.server, self._group, paths={0: self._folder / "standing"})

        def word() -> Word:
            found = question.answers().get(0)
            body = b"" if found is None else msgspec.json.encode(found.shifted(-self._began))
            return Standing(member=self.number, ticket=ticket, body=body)

        self._asked.append((question, word))

    def ask_stacks(self, ticket: int) -> None:
        """Ask the rank for its stacks."""
        self.server.signal(self._group, ranks=(0,), signum=signal.SIGUSR1)
        dump = Dump({0: self._stacks})

        def word() -> Word:
            output = tail(self._output)
            return Stacks(member=self.number, ticket=ticket, stacks=dump.texts()[0], output=output)

        self._asked.append((dump, word))

    def turn(self) -> Iterator[Word]:
        """What has happened since the last call, as reports to the controller."""
        exited = self._group.exits.get(0)
        if exited is not None:
            self._channel.pull(everything=True)  # an answer before its death counts
        while self._channel.frames and not self.over:
            yield from self._told(self._channel.frames.popleft())
        if self._channel.wrong and self._task is not None:
            body = _refused(f"the rank sent {self._channel.wrong}")
            after = time.monotonic() - self._began
            yield Answer(member=self.number, number=self._task, kind="raised", body=body, after=after)
            self._task = None
        if self._seen is not None and not self._ready and self._group.pids is not None:
            self._ready = True
            yield Ready(member=self.number, pid=self._group.pids[0], seen=self._seen)
        for asked in [asked for asked in self._asked if asked[0].over]:
            self._asked.remove(asked)
            yield asked[1]()
        if not self.over and exited is not None:
            self.over = True
            yield Gone(
                member=self.number,
                code=exited.code,
                after=exited.moment - self._began,
                output=tail(self._output),
            )
        elif not self.over and (why := self._unserved()):
            self.over = True
            yield Gone(member=self.number, code=0, after=time.monotonic() - self._began, output="", lost=why)

    def _unserved(self) -> str:
        """Why its fork server can report no more on it; empty while it can."""
        try:
            self.server.require_alive()
        except PoolError as error:
            return str(error)
        return self._group.failure or ""

    def _told(self, said: Frame) -> Iterator[Word]:
        match said.kind:
            case Kind.READY:
                self._seen = msgspec.msgpack.decode(said.body, type=dict[str, str | None])
            case Kind.STORE:
                address = msgspec.msgpack.decode(said.body, type=Address)
                yield StoreAt(member=self.number, host=address.host, port=address.port)
            case Kind.UNFIT:
                printed = tail(self._output)
                text = said.body.decode() + (f"\nit printed:\n{printed}" if printed else "")
                self.over = True
                yield Unfit(member=self.number, reason=text)
            case _ if said.number == self._task:
                self._task = None
                yield self._answered(said)

    def _answered(self, said: Frame) -> Answer:
        body, after = said.body, said.moment - self._began
        if len(body) > _ANSWER_LIMIT:
            body, returned = _refused(f"the answer has {len(body)} bytes; {_ANSWER_LIMIT} can be sent"), False
        elif said.kind not in (Kind.BYTES, Kind.RAISED):
            body, returned = _refused(f"the rank sent a frame of kind {said.kind.name}"), False
        else:
            returned = said.kind == Kind.BYTES
        return Answer(
            member=self.number,
            number=said.number,
            kind="returned" if returned else "raised",
            body=body,
            after=after,
        )

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


def _refused(message: str) -> bytes:
    return msgspec.msgpack.encode(Raised(type="pipeconform.AnswerRefused", message=message))
