"""Groups of commands, and what is said about a command or an option that does not exist."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipeconform.errors import UnknownNameError
from pipeconform.suggestions import hint, nearest

__all__ = ["Group", "about_option"]


class Group(click.Group):
    """Lists its commands in the order in which they are used, and suggests a command for an unknown one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in order."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error for an unknown one names what was probably meant."""
        if args[0].startswith("-") or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        elsewhere = [path for path, command in _below(ctx.find_root()) if command.name == args[0]]
        if elsewhere:
            raise click.UsageError(
                f"unknown command {args[0]!r} of '{ctx.command_path}'; {_has(elsewhere)}", ctx
            )
        if any(f"--{args[0]}" in one.opts for one in self.get_params(ctx)):
            raise click.UsageError(f"unknown command {args[0]!r}; try '{ctx.command_path} --{args[0]}'")
        error = UnknownNameError(
            f"{ctx.command_path} command",
            args[0],
            self.list_commands(ctx),
            listed_by=f"{ctx.command_path} --help",
        )
        raise click.UsageError(str(error)) from None


def about_option(error: click.NoSuchOption) -> str:
    """What to say about an option that a command does not have: the nearest, or which command has it."""
    context = error.ctx
    if context is None:
        return error.message
    said = f"unknown option {error.option_name!r} of '{context.command_path}'"
    near = nearest(error.option_name, _options(context.command))
    elsewhere = [
        path for path, command in _below(context.find_root()) if error.option_name in _options(command)
    ]
    said += hint(near)
    return f"{said}; {_has(elsewhere)}" if elsewhere else said


def _has(paths: list[str]) -> str:
    quoted = [f"'{path}'" for path in paths]
    return f"{' and '.join(quoted)} {'have' if len(paths) > 1 else 'has'} it"


def _options(command: click.Command) -> list[str]:
    return [
        name
        for one in command.params
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("--")
    ]


def _below(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command with its path, such as ``pipeconform schedule draw``."""
    todo: list[tuple[str, click.Command]] = [(context.command_path, context.command)]
    while todo:
        path, command = todo.pop(0)
        yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                if found is not None:
                    todo.append((f"{path} {name}", found))
