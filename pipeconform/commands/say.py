"""Printing for all commands, which escapes control characters: text from elsewhere cannot control the terminal."""

from __future__ import annotations

import click

from pipeconform.showing import shown, shown_json, shown_line

__all__ = ["say", "say_json", "say_line"]


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text of any number of lines."""
    click.echo(shown(text), err=err, nl=nl)


def say_line(text: str, *, err: bool = False) -> None:
    """Print exactly one line: line feeds are escaped, so a name cannot add a second verdict."""
    click.echo(shown_line(text), err=err)


def say_json(text: str, *, nl: bool = True) -> None:
    """Print a JSON document."""
    click.echo(shown_json(text), nl=nl)
