"""The list of defects that were made again because a user of a real engine reported them."""

from __future__ import annotations

from .fault import made

__all__ = ["REPORTED"]

REPORTED = (
    made(
        "reported:SharedCountedTwice",
        "FWD-13",
        "A split backward counts twice what a parameter gets that is used twice on one path.",
        schedule="ZB-H1",
    ),
    made(
        "reported:OutputsSummed",
        "SPL-1",
        "A split backward adds up the gradients of a node's outputs.",
        schedule="ZB-H1",
    ),
    made(
        "reported:LatestLossOnly",
        "TRN-1",
        "One variable holds the losses of all microbatches.",
        schedule="GPipe",
        status="error",
        tells=r"microbatch \d",
    ),
    made(
        "reported:StructuredWithoutBackward",
        "FWD-11",
        "Models that return more than one value get no gradients.",
    ),
    made(
        "reported:OutputsCounted",
        "FWD-11",
        "As many gradients as outputs are asked for in the last stage.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made(
        "reported:InputGradientDemanded",
        "FWD-12",
        "An input without a gradient is an error.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made(
        "reported:NoGradientRefused",
        "FWD-5",
        "An output that requires no gradient is an error.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made("reported:ParametersForgotten", "TRN-1", "The backward accumulates nothing in parameters."),
    made("reported:LossesZero", "TRN-2", "The losses that are returned are zero."),
    made(
        "reported:KwargsForFirstOnly",
        "FWD-9",
        "Stages after the first get no keyword arguments.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made(
        "reported:ObjectsInBackward",
        "FWD-15",
        "Arguments that are no tensors break the backward.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made(
        "reported_sizes:EvaluatedFirst",
        "LIF-1",
        "After an evaluation nothing can be trained.",
        status="error",
    ),
    made(
        "reported_sizes:EvaluationCountKept",
        "LIF-1",
        "Evaluation runs as many microbatches as training.",
    ),
    made(
        "reported_sizes:FewHang",
        "SCH-6",
        "Fewer microbatches than ranks make the first rank wait for ever.",
        status="hung",
        tells="no rank makes progress",
    ),
    made(
        "reported_sizes:FirstSizesKept",
        "LIF-1",
        "A step of another size than the first is an error.",
        status="error",
    ),
    made(
        "reported_sizes:EvaluationSizeKept",
        "LIF-1",
        "A step of another size than the first gets activations of the first's.",
        status="error",
    ),
    made(
        "reported_sizes:UnevenBuffers",
        "FWD-2",
        "Shorter microbatches are received as long as the first.",
        status="error",
    ),
    made(
        "reported_sizes:FewerChunks",
        "FWD-2",
        "Batches are cut by torch.chunk.",
        status="error",
    ),
    made(
        "reported_sizes:ThirdTensorDropped",
        "FWD-4",
        "Of more than two boundary tensors the rest is dropped.",
        status="error",
        tells=r"stage \d, microbatch \d",
    ),
    made(
        "reported_sizes:BatchOfOneSqueezed",
        "FWD-1",
        "A microbatch of one sample loses its batch dimension.",
        status="error",
    ),
)
