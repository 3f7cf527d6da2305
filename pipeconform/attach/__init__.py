"""Ranks on other hosts: the agents that run there, and the controller that they serve.

`docs/attach.md` describes the protocol and what it protects against. Nothing here unpickles what a peer sent.
"""
