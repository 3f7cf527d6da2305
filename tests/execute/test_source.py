"""An adapter's source is read where the adapter is imported."""

import msgspec

from pipeconform.execute.source import Source, answer


def source(reference):
    return msgspec.msgpack.decode(answer(None, reference.encode()), type=Source)


def test_the_source_of_a_file_is_that_file(tmp_path):
    methods = ("describe(self)", "setup_process(self)", "build(self, plan)")
    text = "\n".join(["class Mine:", *(f"    def {one}: ..." for one in methods)]).encode()
    (tmp_path / "mine.py").write_bytes(text)

    assert source(f"{tmp_path / 'mine.py'}:Mine") == Source(name="mine.py", text=text)


def test_the_source_of_a_built_in_name_is_its_module():
    found = source("torch")

    assert found.name == "torch_pipelining.py"
    assert b"class TorchPipelining" in found.text
