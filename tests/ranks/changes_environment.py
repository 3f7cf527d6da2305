"""Preloaded in a fork server, it undoes a variant's setting."""

import os

os.environ["PIPECONFORM_TEST"] = "meddled"
