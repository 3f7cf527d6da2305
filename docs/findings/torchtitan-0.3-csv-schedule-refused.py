"""Of the three names that pipeline_parallel_schedule may have with a CSV schedule, one is refused as unknown.

What: a schedule from a file runs under PipelineScheduleSingle and under PipelineScheduleMulti;
  _PipelineScheduleRuntime, the class that runs it, is a ValueError.
Where: torchtitan 0.3.0, torchtitan/config/configs.py, pipeline_parallel_schedule_csv (line 223);
  torchtitan/distributed/pipeline_parallel.py, _get_pipeline_metadata, which looks the name up.
Why: torch's get_schedule_class does not know that name.
Requirement: none.
Schedules: those from a file.
Known: https://github.com/pytorch/torchtitan/pull/682, in which the name was added; no thread about the refusal.
Possible fix: leave it out of the documentation.
"""

from torchtitan.config import ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import _get_pipeline_metadata


class Model:
    layers = (None,) * 8


for name in ("PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineScheduleRuntime"):
    parallelism = ParallelismConfig(
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule=name,
        pipeline_parallel_schedule_csv="order.csv",
    )
    try:
        stages, *_ = _get_pipeline_metadata(ParallelDims.from_config(parallelism, 2), parallelism, Model)
        print(f"{name}: {stages} stages on 2 ranks")
    except ValueError as error:
        print(f"{name}: ValueError: {str(error)[:50]}...")
