"""The command line: ``pipeconform run --impl …`` and its companions.

Heavy imports are deferred, so that ``pipeconform --help`` answers at once.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from pipeconform import __version__
from pipeconform.commands.naming import Group, about_option
from pipeconform.commands.say import say
from pipeconform.errors import PipeconformError
from pipeconform.ranks.interrupts import sigterm_raises
from pipeconform.session.cache_folder import keep_hypothesis_files

__all__ = ["main", "pipeconform"]

_INTERRUPTED = 130
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


_COMMANDS = {
    "run": "Judge an implementation.",
    "status": "Show how far a run is that judges, or was ended.",
    "report": "Write HTML pages from result files or from a package.",
    "compare": "Show what changed between two results; fail if something got worse.",
    "expect": "Maintain the file of expected failures.",
    "replay": "Execute a stored case again and judge it.",
    "list": "List requirements, levels, or what an implementation claims.",
    "show": "Print requirements, chapters, levels, profiles, features or findings in full.",
    "claims": "List what an adapter could claim next, with the line to write.",
    "schedule": "Verify, time and draw schedule tables.",
    "certify": "Certify an implementation for a level and write a package.",
    "verify": "Check a certification package.",
    "merge": "Merge the shards of a certification.",
    "sign": "Sign a certification package.",
    "doctor": "Check what this machine can run.",
    "selftest": "Check that faulty implementations are detected on this machine.",
    "init": "Write an adapter skeleton that runs as is.",
}
"""Each command's line in the help, in the order in which a newcomer needs them."""


_EXAMPLES = {
    "run": "pipeconform run --impl torch --profile smoke",
    "status": "pipeconform status pipeconform-results",
    "report": "pipeconform report pipeconform-results",
    "compare": "pipeconform compare old/result.json new/result.json",
    "replay": "pipeconform replay TRN-4:GPipe:default:5872 --impl torch",
    "list": "pipeconform show TRN",
    "show": "pipeconform show TRN-4",
    "certify": "pipeconform certify --impl torch --level forward",
    "verify": "pipeconform verify certified.pipeconform.zip",
    "selftest": "pipeconform selftest --requirements TRN-4",
    "init": "pipeconform init my_adapter.py",
}
"""What to type, for commands that are given too little or too much."""


class _Lazy(Group):
    """Imports a command's module, which has the command's name, when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found = vars(importlib.import_module(f"pipeconform.commands.{cmd_name}"))
        command: click.Command = found["list_" if cmd_name == "list" else cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pipeconform")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def pipeconform(debug: bool) -> None:
    """Judge a pipeline-parallel implementation for PyTorch against the standard."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    keep_hypothesis_files()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a terminal or log that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    # ``timeout``, batch systems and containers send SIGTERM; results are kept, as after Ctrl-C
    with sigterm_raises(KeyboardInterrupt()):
        code = _exit_code(list(sys.argv[1:] if arguments is None else arguments))
    if code == _INTERRUPTED:
        # people press Ctrl-C again while Python ends, which would then end by the signal, with another exit code
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _exit_code(arguments: list[str]) -> int:
    """Run a command; print an error meant for the user as one line on stderr, with ``--debug`` its traceback, too."""
    debug, arguments = _take_debug(arguments)
    if trouble := _unusable_surroundings():
        return _fail(trouble, 2)
    try:
        code = pipeconform.main(args=arguments, prog_name="pipeconform", standalone_mode=False, obj=debug)
    except click.Abort:
        return _fail("interrupted", _INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(_usage(error), 2)
    except BrokenPipeError:  # such as in ``pipeconform list | head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PipeconformError as error:
        if debug:
            say(traceback.format_exc(), err=True, nl=False)
        return _fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            say(traceback.format_exc(), err=True, nl=False)
        hint = "" if debug else "; please run again with --debug and report it"
        return _fail(f"internal error of pipeconform: {type(error).__name__}: {error}{hint}", 3)
    return int(code or 0)


def _unusable_surroundings() -> str:
    """Why no command can run here, or nothing; checked first, because the error would come late and be unclear."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        return "standard output is closed; send it to a file, or to /dev/null"
    if importlib.util.find_spec("pipeconform.suites") is None:  # ``python -m pipeconform`` in a clone
        return (
            f"Python takes pipeconform from {Path(__file__).parent}, where the standard is not: "
            f"run 'pipeconform' instead of 'python -m pipeconform', or in another folder"
        )
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
    message = (
        about_option(error) if isinstance(error, click.NoSuchOption) else error.format_message().rstrip(".")
    )
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    given = isinstance(error, click.NoSuchOption | click.BadOptionUsage)
    example = "" if given else _EXAMPLES.get(context.command_path.removeprefix("pipeconform "), "")
    return f"{message}; see '{context.command_path} --help'" + (f", or try '{example}'" if example else "")


def _fail(message: str, code: int) -> int:
    say(f"pipeconform: {message}", err=True)
    return code
