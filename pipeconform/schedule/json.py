"""Tables as JSON, complete and readable."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from pipeconform.errors import BadTableError
from pipeconform.schedule.actions import Action
from pipeconform.schedule.placement import explicit
from pipeconform.schedule.table import Table

VERSION: Literal[1] = 1

_FEW = 1000
"""Microbatch counts up to this are accepted, however few actions a document has."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    num_microbatches: int
    num_chains: int
    placement: tuple[int, ...]
    ranks: tuple[str, ...]
    """Each rank's actions, separated by spaces."""


def to_json(table: Table) -> str:
    """The table as a JSON document, indented."""
    document = _Document(
        version=VERSION,
        num_microbatches=table.num_microbatches,
        num_chains=table.num_chains,
        placement=table.placement,
        ranks=tuple(" ".join(map(str, actions)) for actions in table),
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def from_json(text: str, *, name: str = "table") -> Table:
    """Read what `to_json` wrote.

    Raises:
        BadTableError: The text is not such a document; the message gives line, column and reason.
    """
    try:
        document = msgspec.json.decode(text.encode(), type=_Document)
    except msgspec.ValidationError as reason:
        raise BadTableError(f"{_at_field(text, name, str(reason))}: {reason}") from None
    except (msgspec.DecodeError, RecursionError) as reason:
        raise BadTableError(f"{_at_byte(text, name, str(reason))}: {reason}") from None
    ranks = [_actions(text, name, rank, words) for rank, words in enumerate(document.ranks)]
    field = "placement"
    try:
        explicit(document.placement, num_ranks=len(ranks))
        field = "num_microbatches"
        most = max(_FEW, sum(map(len, document.ranks)))
        if document.num_microbatches > most:
            raise BadTableError(f"{document.num_microbatches} microbatches, but far fewer actions")
        if document.num_microbatches >= 1:
            field = "num_chains"
        return Table.build(
            ranks,
            placement=document.placement,
            num_microbatches=document.num_microbatches,
            num_chains=document.num_chains,
        )
    except BadTableError as reason:
        raise BadTableError(f"{_at_field(text, name, f'$.{field}')}: {reason}") from None


def _actions(text: str, name: str, rank: int, words: str) -> list[Action]:
    actions = []
    for position, found in enumerate(re.finditer(r"\S+", words)):
        try:
            actions.append(Action.parse(found[0]))
        except BadTableError as reason:
            place = _at(text, name, _start_of_rank(text, rank) + 1 + found.start())
            raise BadTableError(f"{place} (rank {rank}, position {position}): {reason}") from None
    return actions


def _start_of_rank(text: str, rank: int) -> int:
    """The start of a rank's string, in a document that has been read."""
    strings = _STRING.finditer(text, text.index('"ranks"') + len('"ranks"'))
    return next(found.start() for k, found in enumerate(strings) if k == rank)


def _at_field(text: str, name: str, reason: str) -> str:
    """The place of the field that a message such as "… - at `$.placement[1]`" names, or else the start."""
    named = re.search(r"\$\.(\w+)|field `(\w+)`", reason)
    field = next((group for group in named.groups() if group), "") if named else ""
    return _at(text, name, max(0, text.find(f'"{field}"')) if field else 0)


def _at_byte(text: str, name: str, reason: str) -> str:
    """The place that a message such as "… (byte 17)" names, or the end of a text that stops too early."""
    byte = re.search(r"\(byte (\d+)\)", reason)
    until = text if byte is None else text.encode()[: int(byte[1])].decode(errors="ignore")
    return _at(text, name, len(until))


def _at(text: str, name: str, position: int) -> str:
    before = text[:position]
    return f"{name}, line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"
