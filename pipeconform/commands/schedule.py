"""``pipeconform schedule verify|simulate|draw|list``: check, time and draw schedule tables without running them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeconform import schedule as language
from pipeconform.commands import schedule_text as text
from pipeconform.commands.costs import cost_options
from pipeconform.commands.naming import Group
from pipeconform.commands.say import say, say_json
from pipeconform.commands.tables import Source, find_family, table_options
from pipeconform.errors import UsageError
from pipeconform.report.console import SafeConsole
from pipeconform.schedule import Costs, Delivery, Kind, Simulation, Table, Violation
from pipeconform.schedule.named import size_of
from pipeconform.schedule.table import rows_of

__all__ = ["schedule"]


@click.group(cls=Group, short_help="Verify, time and draw schedule tables.")
def schedule() -> None:
    """Verify, time and draw schedule tables, without running anything.

    A table is read from a FILE (torch's CSV, compute-only or with communication, or pipeconform's JSON), or generated
    by a family of schedules, given with --name, -p, -v and -m.
    """


@schedule.command(short_help="Find what is wrong with a table, with proofs.")
@table_options
@click.option("--family", metavar="NAME", help="Also check this family's order, memory and bubble.")
@click.option("--forward-only", is_flag=True, help="The table only evaluates: it has no backward.")
@click.option(
    "--delivery",
    type=click.Choice(["buffered", "synchronous", "ordered", "communicator"]),
    default="communicator",
    show_default=True,
    help="The strictest delivery under which the table must not deadlock: sends never wait; sends wait for their "
    "receive; also in order per pair of ranks; also in the order of everything that a rank issues.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most N violations per check.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    source: Source, family: str | None, forward_only: bool, delivery: str, limit: int | None, as_json: bool
) -> int:
    """Print every violation of a table with its proof; exit code 1 if there is one.

    A table given with --name is also checked against its own family.
    """
    if forward_only and family is not None:
        raise UsageError("--forward-only is for tables without --family, which says whether it trains")
    said = family or source.name
    name = None if said is None else find_family(said).name
    strictest = Delivery[delivery.upper()]

    def judge(table: Table) -> tuple[Violation, ...]:
        return _violations(table, name, strictest=strictest, per_rule=limit, forward_only=forward_only)

    table = source.plain()
    found = judge(table)
    if source.lower and not found:
        table = source.table()
        found = judge(table)
    if as_json:
        _echo_json(
            {"table": text.describe(table), "violations": [text.violation_document(one) for one in found]}
        )
    else:
        say(f"{source.title}: {text.describe(table)}")
        for violation in found:
            say(str(violation))
        say(text.verdict(table, found, strictest=strictest, family=name))
    return int(bool(found))


@schedule.command(short_help="Simulate the times of a table.")
@table_options
@cost_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the whole critical path.")
def simulate(source: Source, costs: Costs, as_json: bool) -> None:
    """Simulate a table: makespan, idle time and memory of every rank, critical path.

    Sends are buffered, receives are posted without blocking, and concurrent transfers do not slow each other
    down. Times are in the unit of the costs.
    """
    simulation = _simulated(source, costs)
    if as_json:
        _echo_json(text.simulation_document(simulation))
        return
    say(f"{source.title}: {text.describe(simulation.table)}")
    say(f"makespan {simulation.makespan:g}, busy {simulation.busy_fraction:.1%}\n")
    _console().print(text.ranks_table(simulation))
    if source.name is not None:
        promised = text.promise(find_family(source.name), size_of(simulation.table), simulation)
        say(f"{promised}\n" if promised else "", nl=False)
    say(text.path_text(simulation))


@schedule.command(short_help="Draw a table: terminal, SVG, Chrome trace.")
@table_options
@cost_options
@click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write a picture as SVG.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write Chrome trace events (ui.perfetto.dev opens them).",
)
@click.option("--title", metavar="TEXT", help="Title above the picture.")
@click.option(
    "--width",
    metavar="N",
    type=click.IntRange(min=20),
    help="Width in characters (terminal) or pixels (picture).  [default: the terminal's; as the labels need]",
)
@click.option("--colour/--no-colour", "colour", default=None, help="Print colours.  [default: in a terminal]")
def draw(
    source: Source,
    costs: Costs,
    svg: Path | None,
    trace: Path | None,
    title: str | None,
    width: int | None,
    colour: bool | None,
) -> None:
    """Draw a simulated table in the terminal or into files.

    Cells show stage, kind and microbatch; dots or hatching are idle time. Below them is the number of activations that
    every rank holds.
    """
    if svg is not None and svg.suffix.casefold() == ".png":
        raise UsageError(f"--svg {svg}: pictures are written as SVG; choose a name that ends in .svg")
    simulation = _simulated(source, costs)
    if svg is None and trace is None:
        terminal = sys.stdout.isatty()
        columns = width or (_console().width if terminal else None)
        say(source.title)
        coloured = colour if colour is not None else terminal and not os.environ.get("NO_COLOR")
        click.echo(
            language.draw_text(simulation, width=columns, colour=coloured), nl=False, color=coloured or None
        )
        return
    if svg is not None:
        picture = language.draw_svg(simulation, title=source.title if title is None else title, width=width)
        _write(svg, picture.encode())
    if trace is not None:
        _write(trace, language.to_chrome_trace(simulation).encode())


@schedule.command(name="list", short_help="List the families, their formulas and sources.")
def list_() -> None:
    """List the families that --name and --family know, with formulas and sources.

    p ranks, v stages per rank, m microbatches in rounds of g; F, I, W and B = I + W are the times of one stage.
    "Held" counts (stage, microbatch) pairs between a forward and its backward, or its I or W where noted.
    """
    _console(wide=240).print(text.families_table(language.families()))


def _violations(
    table: Table, name: str | None, *, strictest: Delivery, per_rule: int | None, forward_only: bool = False
) -> tuple[Violation, ...]:
    if name is not None:
        return language.verify_named(table, name=name, strictest=strictest, per_rule=per_rule)
    return language.verify(table, forward_only=forward_only, strictest=strictest, per_rule=per_rule)


def _simulated(source: Source, costs: Costs) -> Simulation:
    """The simulation; a wrong table from a file is simulated as far as possible, with a warning."""
    table = source.table(costs)
    if not costs.overlap and table.num_ranks > 1 and not table.has_communication:
        raise UsageError("--no-overlap needs sends in the table to take time: add --lower")
    simulation = language.simulate(table, costs=costs)
    if source.file is not None:
        trains = bool(rows_of(table, (Kind.B, Kind.I, Kind.W)).any())  # one of forwards alone evaluates
        found = _violations(table, None, strictest=Delivery.BUFFERED, per_rule=1, forward_only=not trains)
        if found:
            say(
                f"pipeconform: warning: the table is wrong, so its times may be meaningless: {found[0]} "
                f"('pipeconform schedule verify {source.file}' prints all violations)",
                err=True,
            )
    return simulation


def _console(*, wide: int = 110) -> SafeConsole:
    """A console as wide as the terminal, or as `wide` where there is none."""
    fixed = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return SafeConsole(width=wide if fixed else None)


def _echo_json(document: Any) -> None:
    say_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as reason:
        raise UsageError(f"cannot write {path}: {reason.strerror or reason}") from None
    say(f"written: {path}")
