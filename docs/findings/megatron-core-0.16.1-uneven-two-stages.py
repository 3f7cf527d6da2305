"""Two uneven pipeline ranks with virtual stages: the second one cannot be built, and the first one is.

What: with num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage, two ranks and virtual stages, the
  configuration is accepted and the first rank's layers are made; on the second one the number of its first layer is
  a ZeroDivisionError. Without virtual stages two ranks are right, and with them three.
Where: megatron-core 0.16.1, core/transformer/transformer_layer.py, get_transformer_layer_offset: layers between first
  and last rank are divided by the number of ranks between them, which is asked for 0 in the other branch alone.
Why it is one: TransformerConfig checks these numbers, and has a rule for no ranks between them; so has
  get_num_layers_to_build, in a comment about two ranks.
Requirement: none (the engine's transformer layers are not claimed).
Schedules: forward_backward_pipelining_with_interleaving.
Known: no public thread found; the same line is on the main branch of August 2026.
Possible fix: no division where there are no such ranks.
"""

import warnings

import torch


def main():
    warnings.simplefilter("ignore")
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    for ranks, virtual, layers in ((2, None, 6), (3, 2, 8), (2, 2, 6)):
        config = TransformerConfig(
            num_layers=layers,
            num_attention_heads=1,
            hidden_size=1,
            pipeline_dtype=torch.float32,
            pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=virtual,
            num_layers_in_first_pipeline_stage=2,
            num_layers_in_last_pipeline_stage=4,
        )
        for rank in range(ranks):
            owned = []
            for stage in [None] if virtual is None else range(virtual):
                try:
                    first = get_transformer_layer_offset(config, stage, rank)
                except ZeroDivisionError as error:
                    owned.append(f"ZeroDivisionError: {error}")
                else:
                    owned.append(list(range(first, first + get_num_layers_to_build(config, stage, rank))))
            print(f"{layers} layers on {ranks} ranks, {virtual or 'no'} virtual stages, rank {rank}: {owned}")


if __name__ == "__main__":
    main()
