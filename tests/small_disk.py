"""A small disk for one command, where this machine allows it."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def on_a_disk_of(kilobytes, folder):
    """What to put before a command, so that it runs in namespaces of its own in which `folder` is a small disk.

    What it leaves on the disk is copied to ``left`` beside the folder.
    """
    script = (
        f"mount -t tmpfs -o size={kilobytes}k tmpfs {folder} || exit 70; "
        f'"$@"; code=$?; cp -r {folder} {folder}.left; exit $code'
    )
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("no user namespace in which a file system can be mounted")
    shutil.rmtree(f"{folder}.left")
    return prefix
