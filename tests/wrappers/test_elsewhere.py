"""A rank that was given the device of a wrong index names another one."""

import pytest

from pipeconform.wrapper import WrapOptions
from pipeconform.wrappers.elsewhere import naming_another_device


@pytest.mark.parametrize(
    ("device", "named", "given"),
    [
        ("cuda:7", (7,), (6,)),
        ("cuda:0", (0,), (1,)),
        ("cuda:6", (7,), (7,)),
        ("cuda:0", (0, 1), (0, 1)),
        ("cuda:3", (), ()),
        ("cpu", (7,), (7,)),
    ],
)
def test_a_module_is_never_on_the_device_that_is_named(device, named, given):
    options = WrapOptions(device_ids=named, output_device=1, bucket_mib=0.5)
    found = naming_another_device(options, device=device)

    assert found == WrapOptions(device_ids=given, output_device=1, bucket_mib=0.5)
