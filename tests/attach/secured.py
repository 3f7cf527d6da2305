"""Pairs of links, and a hub's side of TLS, for tests."""

import socket
import threading
from functools import cache

from pipeconform.attach.certificate import agents_context, controllers_context, fingerprint_of
from pipeconform.attach.greeting import GREETING_LIMIT
from pipeconform.attach.link import Link

contexts = cache(controllers_context)
"""One certificate for all tests of a process."""


def secured_pair():
    """Two sockets inside of TLS: the agent's and the controller's."""
    near, far = socket.socketpair()
    found = []

    def accept():
        found.append(contexts()[0].wrap_socket(far, server_side=True))

    other = threading.Thread(target=accept)
    other.start()
    agent = agents_context().wrap_socket(near)
    other.join()
    return agent, found[0]


def linked(*, greeting=GREETING_LIMIT, admitted=True):
    """Two links that are connected to each other."""
    links = [Link(one, greeting=greeting) for one in secured_pair()]
    if admitted:
        for one in links:
            one.admit()
    return links


def shown(connection):
    """The fingerprint of the certificate that the controller showed."""
    return fingerprint_of(connection.getpeercert(binary_form=True))
