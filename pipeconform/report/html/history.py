"""The page of a history: requirement by release."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.report.causes import causes_of
from pipeconform.report.history import History, Order, State, history_of
from pipeconform.report.html.opening import opening_of
from pipeconform.report.html.status import NOT_RUN, StatusView, status_view
from pipeconform.report.html.templating import render
from pipeconform.report.result import Result
from pipeconform.report.words import moment
from pipeconform.spec.wrappers import all_requirements

__all__ = ["render_history"]


def render_history(results: Sequence[Result], *, by: Order) -> str:
    """One HTML page with a column for each result, in the order of versions or of the runs.

    Raises:
        ValueError: there is no result.
    """
    if not results:
        raise ValueError("a history needs a result")
    found = history_of(results, by=by)
    titles = {row.id: row.title for row in all_requirements()}
    last = found.columns[-1].result
    return render(
        "history.html",
        script="history.js",
        title=_title(found),
        opening=opening_of(last, causes=causes_of(last)),
        news=_news(found),
        moment=lambda column: moment(column.result.created),
        columns=found.columns,
        rows=[row for row in found.rows if row.story not in ("never", "not judged")],
        quiet=[row for row in found.rows if row.story in ("never", "not judged")],
        titles=titles,
        look=_look,
        warnings=list(_warnings(found)),
    )


def _news(found: History) -> str:
    """What changed with the last result."""
    if not found.columns[1:]:
        return ""
    broken, mended = found.changed("broken"), found.changed("mended")
    return f"since {found.columns[-2].label}: {len(broken)} broken, {len(mended)} mended"


def _look(state: State) -> StatusView:
    return NOT_RUN if state.status is None else status_view(state.status)


def _title(found: History) -> str:
    names = dict.fromkeys(column.result.implementation.name for column in found.columns)
    return f"{' and '.join(names)}, {found.columns[0].label} to {found.columns[-1].label}"


def _warnings(found: History) -> list[str]:
    """What else than the implementation differs between the results."""
    facts = {
        "the implementation": [one.result.implementation.name for one in found.columns],
        "the standard": [one.result.standard_version for one in found.columns],
        "the profile": [one.result.run.profile for one in found.columns],
        "the seed": [str(one.result.run.seed) for one in found.columns],
        "the selection": [one.result.run.selection or "everything" for one in found.columns],
    }
    differing = [
        f"{what} differs: {', '.join(dict.fromkeys(values))}"
        for what, values in facts.items()
        if len(set(values)) > 1
    ]
    cut = [column.label for column in found.columns if not column.result.run.complete]
    return [*differing, *(f"{label} was stopped early: cells are missing" for label in cut)]
