"""A run of the suite: drawing corpora, executing cases, judging cells, shrinking counter-examples.

Read in this order: `setup` makes a `campaign` from options; `cell` judges one of its cells. A `target` knows which
cases each requirement needs; a `runner` executes and judges them. There are two of each, for pipelines and for
wrappers; only `describing` and `targets` choose between them. `rejudge` and `settle` judge stored cases again; `trial`
tries implementations that are wrong on purpose.
"""
