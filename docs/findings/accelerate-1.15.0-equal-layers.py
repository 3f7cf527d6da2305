"""``split_points="auto"`` finds no place for the last ranks of a model of equal layers, and ends in StopIteration.

What: eight linear layers of 512 for four ranks, and four of 362 for two, are given to fewer devices than there are
  ranks; prepare_pippy then raises a StopIteration without a word. Models below 1 KB per rank end in a ValueError
  about a size. With the same layers a little larger or smaller there is a place for every rank, and by names the
  models are split.
Where: accelerate 1.15.0, inference.py, generate_device_map (line 31) and prepare_pippy (line 126).
Why: what a rank may hold is the model divided by the ranks, rounded up to whole bytes, KB, MB or GB: 1.003 MB become
  2.2. Divided is by 1024, and multiplied by 1000. The first ranks take more than their share, and none is left for
  the last. "bytes" is no unit that is read again.
Promise: the docstring of prepare_pippy: "'auto' will find the best balanced split given any model".
Requirement: none (split points are given by name: models of the suite are below 1 KB).
Schedules: GPipe, evaluation (it has nothing else).
Known: https://github.com/huggingface/accelerate/issues/3500 (open), with eight ranks and a model of 405B parameters.
Possible fix: give get_balanced_memory's limits, or the number of bytes itself, and say which rank has nothing.

The device map needs no processes: it is made by every rank, alike.
"""

import logging
import sys
import warnings

from accelerate.inference import generate_device_map
from torch import nn

CASES = ((724, 8, 4), (512, 8, 4), (400, 4, 2), (362, 4, 2), (4, 4, 2))  # width, layers, ranks


def points_of(model, ranks):
    """The split points, as prepare_pippy finds them in its device map."""
    devices = generate_device_map(model, ranks)
    return [next(k for k, v in devices.items() if v == i) for i in range(1, ranks)]


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # that there are no such devices here, which changes nothing
    failed = []
    for width, layers, ranks in CASES:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        share = sum(p.numel() * p.element_size() for p in model.parameters()) / ranks
        print(f"{layers} layers of {width} for {ranks} ranks, {share:,.0f} bytes each")
        try:
            points = points_of(model, ranks)
        except StopIteration:
            taken = set(generate_device_map(model, ranks).values())
            print(f"  StopIteration: {len(taken)} of {ranks} ranks are given a layer")
            failed.append(width)
        except ValueError as error:
            print(f"  ValueError: {error}")
            failed.append(width)
        else:
            print(f"  split before {', '.join(points)}")
    if 724 in failed or 400 in failed:
        sys.exit("inconclusive: the controls are not split either")
    print(f"auto: {'finds no split of some' if failed else 'no difference'}")


if __name__ == "__main__":
    main()
