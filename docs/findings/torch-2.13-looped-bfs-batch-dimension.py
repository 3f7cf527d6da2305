"""LoopedBFS has no argument for the dimension of the batch.

What: every schedule takes args_chunk_spec and kwargs_chunk_spec, which say along which dimension inputs are split,
  but for ScheduleLoopedBFS: TypeError. It takes output_merge_spec, so it can merge where it cannot split.
Where: torch 2.13.0, distributed/pipelining/schedules.py, ScheduleLoopedBFS.__init__ (line 2674).
Why: the arguments are in the base class (PipelineScheduleMulti, line 1764) and are not passed on.
Requirement: none; FWD-16 and FWD-22 are not claimed under this schedule.
Schedules: LoopedBFS.
Possible fix: take and pass on the two arguments.
"""

import inspect

from torch.distributed.pipelining.schedules import get_schedule_class


def main():
    for name in (
        "GPipe",
        "1F1B",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ):
        taken = inspect.signature(get_schedule_class(name).__init__).parameters
        found = [
            spec for spec in ("args_chunk_spec", "kwargs_chunk_spec", "output_merge_spec") if spec in taken
        ]
        print(
            f"{name}: expected args_chunk_spec, kwargs_chunk_spec, output_merge_spec; actual {', '.join(found)}"
        )


if __name__ == "__main__":
    main()
