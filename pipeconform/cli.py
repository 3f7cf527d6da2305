"""The command line: ``pipeconform run --impl …`` and its companions.

Nothing heavy is imported here: ``pipeconform --help`` must answer at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from pipeconform import __version__
from pipeconform.commands.certify import certify
from pipeconform.commands.compare import compare
from pipeconform.commands.doctor import doctor
from pipeconform.commands.expect import expect
from pipeconform.commands.init import init
from pipeconform.commands.list import list_
from pipeconform.commands.replay import replay
from pipeconform.commands.report import report
from pipeconform.commands.run import run
from pipeconform.commands.say import say
from pipeconform.commands.schedule import schedule
from pipeconform.commands.selftest import selftest
from pipeconform.commands.show import show
from pipeconform.commands.verify import merge, sign, verify
from pipeconform.errors import PipeconformError
from pipeconform.ranks.interrupts import sigterm_raises
from pipeconform.session.cache_folder import keep_hypothesis_files

__all__ = ["main", "pipeconform"]

_EPILOG = """\
\b
Begin with:
  pipeconform run --impl torch --profile smoke
  pipeconform init my_adapter.py

\b
Exit codes:
  0    every judged requirement is met
  1    violations were found
  2    the command, a name, a file or the adapter is wrong
  3    the harness failed, or nothing was judged
  130  interrupted, by Ctrl-C or SIGTERM
"""


class _InOrder(click.Group):
    """Lists its commands in the order in which a newcomer needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pipeconform")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def pipeconform(debug: bool) -> None:
    """Judge a pipeline-parallel implementation for PyTorch against the standard."""


for _command in (
    run,
    report,
    compare,
    expect,
    replay,
    list_,
    show,
    schedule,
    certify,
    verify,
    merge,
    sign,
    doctor,
    selftest,
    init,
):
    pipeconform.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    keep_hypothesis_files()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a terminal or log that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    # ``timeout``, batch systems and containers end a run so, and its results are to be kept as at Ctrl-C
    with sigterm_raises(KeyboardInterrupt()):
        code = _exit_code(list(sys.argv[1:] if arguments is None else arguments))
    sys.exit(code)


def _exit_code(arguments: list[str]) -> int:
    """Run; an error meant for the user is one line on stderr, its traceback shown with ``--debug``."""
    debug, arguments = _take_debug(arguments)
    if trouble := _surroundings():
        return _fail(trouble, 2)
    try:
        code = pipeconform.main(args=arguments, prog_name="pipeconform", standalone_mode=False, obj=debug)
    except click.Abort:
        return _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(_usage(error), 2)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PipeconformError as error:
        if debug:
            say(traceback.format_exc(), err=True, nl=False)
        return _fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            say(traceback.format_exc(), err=True, nl=False)
        hint = "" if debug else "; run again with --debug and report it, please"
        return _fail(f"a mistake of pipeconform itself: {type(error).__name__}: {error}{hint}", 3)
    return int(code or 0)


def _surroundings() -> str:
    """What a command cannot work in; the error would come late, and from anywhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        return "standard output is closed; send it to a file, or to /dev/null"
    try:
        os.getcwd()
    except OSError as error:
        return f"the working directory cannot be used: {error.strerror}; change to another one"
    return ""


def _take_debug(arguments: list[str]) -> tuple[bool, list[str]]:
    """Accept ``--debug`` anywhere before ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return len(ours) < end, [*ours, *arguments[end:]]


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}; see '{context.command_path} --help'"


def _fail(message: str, code: int) -> int:
    say(f"pipeconform: {message}", err=True)
    return code
