"""Write docs/releases.md: which release of torch meets what, and what changed between neighbours.

    python docs/torches/page.py [--results build/torches] [--environments .venv-torches]

The results of judge.py are large, so what the page needs of them is kept in ``verdicts.json``; results that are found
are put into it first. What the scripts of docs/findings print is in ``scripts.json`` (scripts.py). ``causes.toml`` is
written by hand: the cause of each change, the stored case that shows it, and where torch's sources tell it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import environments
import replays
import scripts

HERE = Path(__file__).resolve().parent
KEPT, CAUSES = HERE / "verdicts.json", HERE / "causes.toml"
PAGE = environments.ROOT / "docs" / "releases.md"

_WRONG = ("crashed", "hung", "failed", "error", "flaky")
_NUMBERS = (
    "The numbers are of schedules: those under which the requirement is not met, "
    "of those under which it was judged. "
)
_WORDS = {"crashed": "CRASH", "hung": "HUNG", "failed": "FAIL", "error": "ERR", "flaky": "FLAKY"}
_TITLES = {
    "torch": "torch.distributed.pipelining",
    "torch-ddp": "DistributedDataParallel",
    "torch-fully-shard": "fully_shard",
    "torch-fsdp": "FullyShardedDataParallel",
    "reference": "the reference implementation",
}

Verdicts = dict[str, dict[str, dict]]
"""By implementation and profile, such as ``torch smoke``, and by release."""


def main() -> None:
    """Collect results, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("build/torches"))
    parser.add_argument("--environments", type=Path, default=Path(".venv-torches"))
    asked = parser.parse_args()
    kept = collected(stored(), results=asked.results, made=asked.environments)
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def stored() -> Verdicts:
    """What is kept in ``verdicts.json``."""
    return json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}


def collected(kept: Verdicts, *, results: Path, made: Path) -> Verdicts:
    """What is kept, with all results in a folder and the environments' costs.

    Rows of some requirements, which were judged alone, take the place of those in the same release's whole result.
    """
    for file in sorted(results.glob("*/*/result.json")):
        if (result := _complete(file)) is not None:
            release, (impl, _, profile) = file.parts[-3], file.parts[-2].rpartition("-")
            kept.setdefault(f"{impl} {profile}", {})[release] = compact(result)
    for file in sorted(results.glob("*/some/*/result.json")):
        release, (impl, _, profile) = file.parts[-4], file.parts[-2].rpartition("-")
        whole = kept.get(f"{impl} {profile}", {}).get(release)
        if whole is not None and (result := _complete(file)) is not None:
            alone, asked = compact(result), result["run"]["selection"].split(",")
            whole["rows"] |= {name: alone["rows"][name] for name in asked}
            whole["alone"] = whole.get("alone", {}) | dict.fromkeys(asked, alone["created"])
    for file in sorted(made.glob("*/ready.json")):
        kept.setdefault("environments", {})[file.parent.name] = json.loads(file.read_text("utf-8"))
    return kept


def _complete(file: Path) -> dict | None:
    result = json.loads(file.read_text("utf-8"))
    return result if result["run"]["complete"] else None


def compact(result: dict) -> dict:
    """What the page needs of a result."""
    rows: dict[str, dict] = {}
    for cell in result["cells"]:
        row = rows.setdefault(cell["requirement"], {"wrong": {}, "met": 0, "blocked": 0, "why": []})
        if cell["status"] in _WRONG:
            row["wrong"].setdefault(cell["status"], []).append(cell["schedule"])
            for violation in cell["violations"]:
                text = f"{violation['status']}: {violation['signature'][:100]}"
                if text not in row["why"]:
                    row["why"].append(text)
        row["met"] += cell["status"] == "passed"
        row["blocked"] += cell["status"] == "blocked"
        if cell["status"] in ("not_claimed", "skipped", "nothing_compared"):
            row.setdefault("reason", cell["reason"])
    return {
        "torch": result["environment"]["torch"],
        "python": result["environment"]["python"],
        "standard": result["standard_version"],
        "created": result["created"][:10],
        "executions": result["totals"]["executions"],
        "elsewhere": (result["implementation"]["capabilities"] or {}).get("elsewhere") or [],
        "rows": rows,
    }


def page() -> str:
    """The text of docs/releases.md, made from the three files beside this one."""
    kept = stored()
    causes = tomllib.loads(CAUSES.read_text("utf-8")).get("cause", []) if CAUSES.exists() else []
    parts = [
        "# Releases of torch",
        "Which release of torch's pipelining meets what, and where a requirement was broken or mended. Made by "
        "`docs/torches/page.py` from the results of `make torches`, which judges each release in an environment of "
        "its own (CPU, gloo). A verdict is about the cases that were drawn: *smoke* draws few, so a defect that needs "
        "a rare case may be seen in one release and not in the next. The changes in the first table were confirmed: "
        "the case that shows one was run with `pipeconform replay` on every release named there, at least on both "
        "sides of the change. The last column of the other tables only compares what was drawn.",
        *_causes(causes),
        *(
            block
            for key in sorted(kept, key=_order)
            if key != "environments"
            for block in _table(key, kept[key])
        ),
        *_scripts(),
        *_environments(kept.get("environments", {})),
    ]
    return "\n\n".join(parts) + "\n"


def _order(key: str) -> tuple[int, str]:
    impl, _, profile = key.partition(" ")
    return (list(_TITLES).index(impl) if impl in _TITLES else len(_TITLES), profile)


def _causes(causes: Sequence[Mapping]) -> Iterator[str]:
    if not causes:
        return
    yield "## What changed, and why"
    yield _rows(
        ("Change", "Requirements", "What", "Shown by", "In torch"),
        (
            (
                f"{one['change']} in {_minor(one['release'])}",
                ", ".join(one["requirements"]),
                one["what"],
                f"[{one['case']}](torches/cases/{one['case']}.json): {_replayed(one['case'])}",
                one.get("source", "not found"),
            )
            for one in causes
        ),
    )


def _replayed(case: str) -> str:
    """``violated with 2.11, met with 2.12``: what the case showed with each release that it was run on."""
    shown = replays.stored().get(case, {})
    met = [_minor(r) for r in sorted(shown, key=_number) if shown[r] == "met"]
    violated = [_minor(r) for r in sorted(shown, key=_number) if shown[r] != "met"]
    parts = [f"violated with {', '.join(violated)}"] if violated else []
    return "; ".join([*parts, *([f"met with {', '.join(met)}"] if met else [])]) or "not run"


def _minor(release: str) -> str:
    return release.rpartition(".")[0]


def _table(key: str, verdicts: Mapping[str, dict]) -> Iterator[str]:
    impl, _, profile = key.partition(" ")
    verdicts, releases = comparable(verdicts), sorted(verdicts, key=_number)
    yield f"## {_TITLES.get(impl, impl)}, profile {profile}"
    names = sorted({name for one in verdicts.values() for name in one["rows"]}, key=_requirement)
    rows = {name: [_cell(verdicts[r], name) for r in releases] for name in names}
    changing = [name for name, cells in rows.items() if not {*cells} <= {"ok", "–"}]
    met = [name for name in names if name not in changing]
    if changing:
        yield _rows(
            ("", *releases, ""),
            ((name, *rows[name], story(verdicts, name)) for name in changing),
        )
        yield (
            f"{_NUMBERS if impl == 'torch' else ''}*Blocked*: another requirement is not met by the same case, so that "
            "this one cannot be judged by it; – is not claimed, or was not judged (by the same cases)."
        )
    yield (
        f"Met with {'all' if len(releases) > 1 else 'the'} releases above or not judged: {_listed(met)}."
        if (changing)
        else f"With {', '.join(releases)} every requirement that was judged is met."
    )
    yield from _alone(verdicts)
    for release in releases:
        for text in verdicts[release]["elsewhere"]:
            yield f"- {release}, not claimed: {text}"


def comparable(verdicts: Mapping[str, dict]) -> dict[str, dict]:
    """The verdicts without rows that older cases gave: those of what was judged alone later, on other releases."""
    later = {name for one in verdicts.values() for name in one.get("alone", {})}
    return {
        release: one
        | {
            "rows": {
                name: row
                for name, row in one["rows"].items()
                if name not in later - one.get("alone", {}).keys()
            }
        }
        for release, one in verdicts.items()
    }


def _alone(verdicts: Mapping[str, dict]) -> Iterator[str]:
    days: dict[str, set[str]] = {}
    for one in verdicts.values():
        for name, day in one.get("alone", {}).items():
            days.setdefault(day, set()).add(name)
    for day, names in sorted(days.items()):
        yield f"Judged alone, later than the others, on {day}: {_listed(sorted(names, key=_requirement))}."


def story(verdicts: Mapping[str, dict], name: str) -> str:
    """``mended in 2.14``, ``broken in 2.12``, ``always``, or both, of a requirement that some release does not meet.

    A release in which it is met as far as it is not blocked decides nothing.
    """
    said, before = [], None
    states = [(r, _state(verdicts[r], name)) for r in sorted(verdicts, key=_number)]
    judged = [(r, wrong) for r, wrong in states if wrong is not None]
    for release, wrong in judged:
        if before is not None and wrong != before:
            said.append(f"{'broken' if wrong else 'mended'} in {_minor(release)}")
        before = wrong
    return ", ".join(said) or ("always" if before else "")


def _state(one: Mapping, name: str) -> bool | None:
    """Whether a requirement is not met; None if that is not known."""
    row = one["rows"].get(name)
    if row is None or (not row["wrong"] and (row["blocked"] or not row["met"])):
        return None
    return bool(row["wrong"])


def _cell(one: Mapping, name: str) -> str:
    row = one["rows"].get(name)
    if row is None or not (row["wrong"] or row["met"] or row["blocked"]):
        return "–"
    number, blocked = sum(map(len, row["wrong"].values())), row["blocked"]
    judged = number + row["met"]
    worst = next((status for status in _WRONG if status in row["wrong"]), "")
    said = f"{_WORDS[worst]} {number}/{judged}" if worst else "ok" if judged else ""
    return ", ".join(filter(None, (said, f"{blocked} blocked" if blocked else "")))


def _scripts() -> Iterator[str]:
    kept = environments.stored(scripts.KEPT)
    if not kept:
        return
    known = tomllib.loads(CAUSES.read_text("utf-8")).get("script", {}) if CAUSES.exists() else {}
    releases = sorted({r for one in kept.values() for r in one} - {_WRITTEN_WITH}, key=_number)
    yield "## The findings' scripts on other releases"
    yield (
        "Each script shows one [finding](findings/README.md) on plain torch. *Shown*: it prints what it prints "
        "on 2.13.0; – was not run, or one of its ranks gave no result. *Differs*: it prints something else, which the "
        "last column explains. *Ends*: an error ends it first; so does every step of two ranks with 2.9, most of V "
        "schedules until 2.11, and what a release does not have yet."
    )
    yield _rows(
        ("Script", *releases, ""),
        (
            (
                f"[{name.removeprefix('torch-2.13-')}](findings/{name}.py)",
                *(_shown(kept[name].get(r)) for r in releases),
                known.get(name, ""),
            )
            for name in sorted(kept)
        ),
    )


_WRITTEN_WITH = "2.13.0"  # the release whose outputs are stored, and held to be its own by the tests
_ENDS = (
    *("[exit code", "no result", "enforce fail", "Pair is not connected"),
    *("Connection closed", "rank is gone", "SIGABRT"),
)


def _shown(text: str | None) -> str:
    if text is None:
        return "–"
    if text == scripts.AS_STORED:
        return "shown"
    return "ends" if any(words in text for words in _ENDS) else "differs"


def _environments(made: Mapping[str, Mapping]) -> Iterator[str]:
    if not made:
        return
    yield "## What the environments cost"
    yield (
        "Installed by `make torches` without what a run on a CPU never loads (`docs/torches/environments.py`): "
        f"{', '.join(sorted(environments.NEVER_LOADED))}, and the libraries of CUDA that `import torch` does not load. "
        "Downloads are those that pip reports, without packages that were on the machine."
    )
    yield _rows(
        ("Release", "Build", "Python", "Downloaded", "Deleted again", "Installed", "Time"),
        (
            (
                release,
                one["torch"],
                one["python"],
                f"{one['downloaded_mb']:,.0f} MB",
                f"{one['deleted_mb']:,} MB",
                f"{one['installed_mb']:,} MB",
                f"{one['seconds']:.0f} s",
            )
            for release, one in sorted(made.items(), key=lambda pair: _number(pair[0]))
        ),
    )


def _rows(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(one.replace("|", "\\|") for one in row) + " |" for row in rows]
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    """``FWD-1, 3 to 5; TRN-2``: ids by chapter."""
    chapters: dict[str, list[int]] = {}
    for name in names:
        chapter, _, number = name.partition("-")
        chapters.setdefault(chapter, []).append(int(number))
    return "; ".join(f"{chapter} {', '.join(map(str, numbers))}" for chapter, numbers in chapters.items())


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _requirement(name: str) -> tuple[int, int]:
    chapters = ("FWD", "TRN", "SPL", "SCH", "ERR", "COM", "LIF", "TRC", "DPC", "DPW")
    chapter, _, number = name.partition("-")
    return (chapters.index(chapter) if chapter in chapters else len(chapters), int(number))


if __name__ == "__main__":
    sys.exit(main())
