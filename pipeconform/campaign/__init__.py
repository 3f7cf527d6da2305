"""A run of the suite: drawing corpora, executing cases, judging cells, shrinking counter-examples.

Read from front to back: `setup` makes a `campaign` of options; `cell` judges one cell of it. What is asked is known to
a `target`, of which there are two, `pipeline` and `wrapper`; cases are executed and judged by a `runner`, of which
there are two as well. `describing` and `targets` choose between them; no other module asks what an implementation is.
`rejudge` and `settle` judge stored cases again; `trial` tries implementations that are wrong on purpose.
"""
