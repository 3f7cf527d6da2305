"""A pipeline-parallel implementation written to be read.

It answers "what is right?" with the plainest possible code; faster code that is harder to
follow was left out. Read it in this order:

1. `containers`     trees of tensors
2. `microbatches`   from a batch to microbatches and back
3. `backward`       through one microbatch's graph: at once, or inputs first and weights later
4. `stage`          a module and its microbatches in flight
5. `metadata`       what a boundary is, and what of it may change
6. `wire`           the bytes that carry it
7. `link`           messages between ranks
8. `replicas`       stages with data-parallel replicas: gradients averaged once per step
9. `runtime`        carries out a rank's list of actions; what happens when something fails
10. `operations`    the same step by hand, stage by stage and microbatch by microbatch
11. `tables`        which schedules there are
12. `capture`       a model's graph, found without computing anything
13. `tracing`       a whole model cut into stages; `front_end` adapts it to the contract, and ties gradients
14. `adapter`       all of it behind the contract

`data_parallel` is another implementation beside the pipeline: a wrapper that synchronises replicas of a module, with
`gradient_buckets`, `communication_hooks`, and `replica_state`, `replica_join`, `replica_precision` to read after it.

`faults` holds implementations that are wrong on purpose: each changes one of these things.
"""
