"""The environment variants that an implementation is judged under, each with processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipeconform.campaign.runner import Runner

__all__ = ["Runners"]

AnyRunner = Runner[Any, Any]


class Runners(Mapping[str, AnyRunner]):
    """The runners by variant, the default first; a variant's processes start at its first use."""

    def __init__(
        self, default: AnyRunner, *, names: Iterable[str], start: Callable[[str], AnyRunner]
    ) -> None:
        self._names = ("default", *names)
        self._started = {"default": default}
        self._start = start

    @property
    def started(self) -> Mapping[str, AnyRunner]:
        """The runners that have been used, in order of first use."""
        return self._started

    def __getitem__(self, name: str) -> AnyRunner:
        """The runner for a variant.

        Raises:
            KeyError: the implementation has no such variant.
            HarnessError: processes cannot be started, or do not have the variant's settings.
        """
        if name not in self._names:
            raise KeyError(name)
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's default would start processes

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
