"""The environment variants that an implementation is judged under, each with processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pipeconform.campaign.executor import Executor

__all__ = ["Executors"]


class Executors(Mapping[str, Executor]):
    """By variant, the default settings first; a variant's processes start when it is asked for first."""

    def __init__(self, default: Executor, start: Callable[[str], Executor]) -> None:
        self._names = ("default", *default.description.variants)
        self._started = {"default": default}
        self._start = start

    @property
    def started(self) -> Mapping[str, Executor]:
        """Those that have been asked for, in the order in which that happened."""
        return self._started

    def __getitem__(self, name: str) -> Executor:
        """The executor of one variant.

        Raises:
            KeyError: the implementation names no such variant.
            HarnessError: processes cannot be started, or do not see the variant's settings.
        """
        if name not in self._names:
            raise KeyError(name)
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
