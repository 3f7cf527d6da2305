"""The limit of open files is raised as far as it goes, and no further."""

import subprocess
import sys

SCRIPT = """
import resource, sys
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from pipeconform.attach.link import descriptor_limit, raise_descriptor_limit
raise_descriptor_limit(wanted)
print(descriptor_limit())
"""


def raised(soft, hard, wanted):
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(wanted)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_it_is_raised_to_what_is_wanted_or_allowed_and_never_lowered():
    assert raised(128, 512, 300) == 300
    assert raised(128, 512, 1000) == 512
    assert raised(400, 512, 300) == 400
