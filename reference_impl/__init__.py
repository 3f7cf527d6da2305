"""A pipeline-parallel implementation written to be read.

It answers "what is right?" with the plainest code that is; where something faster would be harder to
follow, it is not here. Read it in this order:

1. `containers`     trees of tensors
2. `microbatches`   from a batch to microbatches and back
3. `backward`       through one microbatch's graph: at once, or inputs first and weights later
4. `stage`          a module and its microbatches in flight
5. `metadata`       what crosses a boundary, and the bytes that carry it
6. `link`           messages between ranks
7. `replicas`       stages with data-parallel replicas: gradients averaged once per step
8. `runtime`        carry out a rank's list of actions; what happens when something fails
9. `operations`     the same step by hand, stage by stage and microbatch by microbatch
10. `tables`        which schedules there are
11. `capture`       a model's graph, found without computing anything
12. `tracing`       a whole model cut into stages; `front_end` says it in the contract's words, and ties gradients
13. `adapter`       all of it behind the contract

`faults` holds implementations that are wrong on purpose: each changes one of these things. `mutants` are wrong
by accident: a rule changed one line.
"""
