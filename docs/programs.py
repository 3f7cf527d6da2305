"""Write every violation of torch's pipelining in the given results as a plain program, and print the table of
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


def main(out, *folders):
    lengths, whole, refused = defaultdict(list), [], Counter()
    for folder in folders:
        Path(out, Path(folder).name).mkdir(parents=True, exist_ok=True)
        for one in stored(folder):
            try:
                text = text_of(one)
            except NotPlainError as reason:
                refused[str(reason)] += 1
                continue
            Path(out, Path(folder).name, f"{one.name.replace(':', '-')}.py").write_text(text)
            whole.append((folder, len(text.splitlines())))
            lengths[one.requirement].append(len(text.splitlines()))
    print("| | programs | median | nine tenths | longest |\n|---|---|---|---|---|")
    for name, rows in [
        *((Path(folder).name, [n for where, n in whole if where == folder]) for folder in folders),
        ("together", [n for _, n in whole]),
        *sorted(lengths.items()),
    ]:
        rows.sort()
        print(f"| {name} | {len(rows)} | {median(rows):.0f} | {rows[int(0.9 * len(rows))]} | {rows[-1]} |")
    print(f"\n{len(whole)} of {len(whole) + sum(refused.values())} violations; the others:\n")
    for reason, number in refused.most_common():
        print(f"- {number}: {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
