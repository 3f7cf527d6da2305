"""The environment variants that an implementation is judged under, each with processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipeconform.campaign.runner import Runner

__all__ = ["Runners"]

AnyRunner = Runner[Any, Any]


class Runners(Mapping[str, AnyRunner]):
    """By variant, the default settings first; a variant's processes start when it is asked for first."""

    def __init__(
        self, default: AnyRunner, *, names: Iterable[str], start: Callable[[str], AnyRunner]
    ) -> None:
        self._names = ("default", *names)
        self._started = {"default": default}
        self._start = start

    @property
    def started(self) -> Mapping[str, AnyRunner]:
        """Those that have been asked for, in the order in which that happened."""
        return self._started

    def __getitem__(self, name: str) -> AnyRunner:
        """What runs cases under one variant.

        Raises:
            KeyError: the implementation names no such variant.
            HarnessError: processes cannot be started, or do not see the variant's settings.
        """
        if name not in self._names:
            raise KeyError(name)
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would start processes to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
