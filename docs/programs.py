"""Write every violation of torch's pipelining in the given results as a plain program, and their lengths into
docs/programs.md.

    pipeconform run --impl torch --profile smoke --out smoke
    pipeconform run --impl torch --profile core --out core
    python docs/programs.py PROGRAMS smoke core
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from pipeconform.commands.stored import Stored
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.script import plain_program
from pipeconform.export.question import Question
from pipeconform.report.result import read_result

PAGE = Path(__file__).with_name("programs.md")
BEGIN, END = "<!-- lengths -->", "<!-- end of lengths -->"
SETTINGS = {"default": {}, "validated": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}


def stored(folder):
    """The result's name and version of torch, and its violations."""
    result = read_result(Path(folder, "result.json"))
    for cell in result.cells:
        for one in cell.violations:
            yield Stored(
                name=one.id, case=one.case, requirement=cell.requirement, variant=cell.variant, violation=one
            )


def text_of(one):
    """The program of a violation.

    Raises:
        NotPlainError: there is none.
    """
    question = Question(
        engine="torch.distributed.pipelining",
        case=one.case,
        requirements=(one.requirement,),
        sought=one.sought,
        variant=one.variant,
        settings=SETTINGS[one.variant],
    )
    return plain_program(question, found=one.words)


def table(lengths, of_profiles):
    """Rows for each profile, for all, and for each requirement; the last column has every length."""
    yield "| | programs | median | nine tenths | longest | lines of each |\n|---|---|---|---|---|---|"
    whole = [n for rows in of_profiles.values() for n in rows]
    for name, rows in [*of_profiles.items(), ("together", whole), *sorted(lengths.items())]:
        rows = sorted(rows)
        each = ", ".join(f"{n} ({k})" if k > 1 else f"{n}" for n, k in sorted(Counter(rows).items()))
        shown = each if name in lengths else ""
        yield f"| {name} | {len(rows)} | {median(rows):.0f} | {rows[int(0.9 * len(rows))]} | {rows[-1]} | {shown} |"


def main(out, *folders):
    lengths, of_profiles, refused = defaultdict(list), defaultdict(list), Counter()
    for folder in folders:
        profile = read_result(Path(folder, "result.json")).run.profile
        Path(out, profile).mkdir(parents=True, exist_ok=True)
        for one in stored(folder):
            try:
                text = text_of(one)
            except NotPlainError as reason:
                refused[str(reason)] += 1
                continue
            Path(out, profile, f"{one.name.replace(':', '-')}.py").write_text(text)
            of_profiles[profile].append(len(text.splitlines()))
            lengths[one.requirement].append(len(text.splitlines()))
    number = sum(map(len, lengths.values()))
    told = [
        *table(lengths, of_profiles),
        "",
        f"{number} of {number + sum(refused.values())} violations; the others:",
        "",
        *(f"- {number}: {reason}" for reason, number in refused.most_common()),
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *told, "", f"{END}{rest.partition(END)[2]}"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
