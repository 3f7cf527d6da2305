"""Ranks on other hosts: agents that stand there, and the controller that they serve.

`docs/attach.md` describes the protocol and what it protects from. Nothing here unpickles what a peer sent.
"""
