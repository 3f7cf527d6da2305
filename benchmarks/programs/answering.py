"""Answers questions one after the other, as exported programs do, in one process that has only their archive.

``python answering.py ARCHIVE`` reads a line of JSON for each question (the implementation and the question's file), and
answers with a line of JSON: the exit code and the lines that a program would print. Started by `Shared`, where the
modules that a reader of a program need not have cannot be imported.
"""

import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path


def main(archive):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="judgement-") as folder:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
        sys.path[0] = folder
        from pipeconform.campaign.describing import describe, runner_of
        from pipeconform.campaign.here import pools_here
        from pipeconform.errors import PipeconformError
        from pipeconform.execute.implementation import resolve
        from pipeconform.export.program import INCONCLUSIVE, answered
        from pipeconform.export.question import read_question
        from pipeconform.ranks import devices

        with pools_here(None, devices.resolve("cpu", backend="auto", ranks_per_device=1)) as pools:
            for line in sys.stdin:
                implementation, question = json.loads(line)
                try:
                    full = resolve(implementation)
                    runner = runner_of(describe(pools, full), implementation=full, pools=pools)
                    said, code = answered(read_question(Path(question).read_bytes()), runner)
                except PipeconformError as error:
                    said, code = [f"INCONCLUSIVE: {error}"], INCONCLUSIVE
                print(json.dumps([code, said]), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
