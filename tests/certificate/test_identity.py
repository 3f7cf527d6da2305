"""The certificate, the environment and the other files of a package are about one implementation, machine and run."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.certificate.contents import Contents, claims_of_result, digest_of
from pipeconform.certificate.identity import identity_doubts
from pipeconform.execute.engine import Component
from tests.certificate.conftest import LEVEL, SOURCE, wrapper

replaced = msgspec.structs.replace


def texts(contents: Contents) -> list[str]:
    return [str(doubt) for doubt in identity_doubts(LEVEL, contents)]


def with_certificate(contents: Contents, **fields) -> Contents:
    return replaced(contents, certificate=replaced(contents.certificate, **fields))


def with_result(contents: Contents, **fields) -> Contents:
    return replaced(contents, result=replaced(contents.result, **fields))


def with_implementation(contents: Contents, **fields) -> Contents:
    """An implementation that is changed wherever it stands."""
    changed = with_result(contents, implementation=replaced(contents.result.implementation, **fields))
    return with_certificate(changed, claims_digest=digest_of(claims_of_result(changed.result)))


def with_machine(contents: Contents, **fields) -> Contents:
    """The only machine changed, and the certificate's digest of it made right."""
    machine = replaced(contents.environment[0], **fields)
    changed = replaced(contents, environment=(machine,))
    return with_certificate(changed, environment_digests=(digest_of(machine),))


def with_environment(contents: Contents, **fields) -> Contents:
    """The environment changed in the result and on the machine."""
    environment = replaced(contents.result.environment, **fields)
    return with_machine(with_result(contents, environment=environment), environment=environment)


def with_engine(contents: Contents, *engine: Component) -> Contents:
    """The files behind the adapter changed on the certificate and on the machine."""
    return with_certificate(with_machine(contents, engine=engine), engine=engine)


def test_a_sound_package_contradicts_itself_nowhere(contents):
    assert texts(contents) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("implementation", "another"),
        ("version", "another"),
        ("reference", "other.py:A"),
        ("source_digest", "0" * 64),
        ("product_version", "0.0.9"),
        ("standard_version", "0.0"),
        ("seed", 1),
        ("draws", 1),
        ("run_ids", ("c" * 32,)),
        ("weakening", ("made up",)),
    ],
)
def test_what_the_certificate_repeats_is_what_the_result_says(contents, field, value):
    assert any(
        one.startswith(f"certificate.json: {field}: {value!r}, but result.json says ")
        for one in texts(with_certificate(contents, **{field: value}))
    )


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"level": "full"}, "level: 'full', but the level's name is 'forward'"),
        ({"claims_digest": "0" * 64}, "claims_digest: does not match the claims in result.json"),
        (
            {"environment_digests": ("0" * 64,)},
            "environment_digests: do not match the machines in environment.json",
        ),
        ({"format": 2}, "format: 2; this version of pipeconform checks 3"),
        ({"shards": 0}, "shards: 0: 1 for a shard, 1 or more for a whole package"),
        ({"shard": "0/2"}, "shard: '0/2' is not a shard such as 1/3"),
        ({"shard": "3/2"}, "shard: '3/2' is not a shard such as 1/3"),
        ({"shard": "1/02"}, "shard: '1/02' is not a shard such as 1/3"),
        ({"shard": "one"}, "shard: 'one' is not a shard such as 1/3"),
        (
            {"mixed_environments": True},
            "mixed_environments: true, but the machines in environment.json do not differ",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(map(str, value.values()))[:12],
)
def test_an_impossible_certificate_is_doubted_for_one_reason(contents, fields, doubt):
    assert texts(with_certificate(contents, **fields)) == [f"certificate.json: {doubt}"]


@pytest.mark.parametrize("shard", ["1/1", "2/2", "1/9999"])
def test_any_number_up_to_the_total_is_a_shard(contents, shard):
    assert texts(with_certificate(contents, shard=shard)) == []


def test_a_shard_is_not_made_of_shards(contents):
    machines = contents.environment[0], replaced(contents.environment[0], run_id="b" * 32)
    ids = tuple(one.run_id for one in machines)
    run = replaced(contents.result.run, ids=ids)
    logs = {f"shard-{n}/{name}": b"" for n in (1, 2) for name in ("logs/summary.txt", "logs/junit.xml")}
    both = with_certificate(
        replaced(contents, environment=machines, others={"adapter/mine.py": SOURCE, **logs}),
        run_ids=ids,
        shards=2,
        environment_digests=tuple(map(digest_of, machines)),
    )
    both = with_result(both, run=run)

    assert texts(both) == []
    assert texts(with_certificate(both, shard="1/2")) == [
        "certificate.json: shards: 2: 1 for a shard, 1 or more for a whole package"
    ]
    once = with_result(with_certificate(both, run_ids=ids[:1] * 2), run=replaced(run, ids=ids[:1] * 2))
    assert "certificate.json: run_ids: 1 different ids, but there were 2 runs" in texts(once)


@pytest.mark.parametrize(
    ("created", "is_right"),
    [
        ("2026-01-02T03:04:05+00:00", True),
        ("2026-01-02T03:04:06+00:00", True),
        ("2026-01-02T03:04:04+00:00", False),
        ("2026-01-02T03:04:05", False),
        ("2026-01-02T03:04:05.500000+00:00", False),
        ("2026-01-02T04:04:05+01:00", False),
        ("tomorrow", False),
    ],
)
def test_a_certificate_is_made_when_its_result_is_or_later_and_its_time_is_in_utc(
    contents, created, is_right
):
    made = with_result(contents, created="2026-01-02T03:04:05+00:00")
    told = f"certificate.json: created: {created!r}, but the result was created '2026-01-02T03:04:05+00:00'"

    assert texts(with_certificate(made, created=created)) == ([] if is_right else [told])


@pytest.mark.parametrize("run_id", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32])
def test_the_id_of_a_run_is_32_hexadecimal_digits(contents, run_id):
    made = with_machine(with_certificate(contents, run_ids=(run_id,)), run_id=run_id)
    made = with_result(made, run=replaced(made.result.run, ids=(run_id,)))

    assert texts(made) == ["certificate.json: run_ids: an id is 32 hexadecimal digits"]


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("field", ["implementation", "version", "reference", "product_version"])
def test_names_and_versions_are_not_blank_though_all_files_agree(contents, field, blank):
    made = with_certificate(contents, **{field: blank})
    if field == "product_version":
        made = with_result(made, product_version=blank)
    else:
        made = with_implementation(made, **{{"implementation": "name"}.get(field, field): blank})

    assert texts(made) == [f"certificate.json: {field}: blank"]


# -------------------------------------------------------------------------------------------------- claims


def test_claims_and_promises_are_in_the_form_that_this_version_writes(contents):
    one = contents.result.implementation
    for field in ("capabilities", "errors"):
        said = getattr(one, field)
        for other in ({**said, "more": 1}, dict(reversed(said.items())), None):
            found = texts(with_implementation(contents, **{field: other}))

            assert (
                f"result.json: implementation.{field}: not in the form in which this version writes an adapter's claims"
            ) in found


def test_a_wrapper_makes_no_promises_about_errors(contents):
    promises = contents.result.implementation.errors
    one = replaced(wrapper(), source=contents.result.implementation.source)
    made = with_implementation(
        contents, **{name: getattr(one, name) for name in ("kind", "capabilities", "errors")}
    )

    assert not any("errors" in text for text in texts(made))
    assert "result.json: implementation.errors: a wrapper has no error contract" in texts(
        with_implementation(made, errors=promises)
    )


# -------------------------------------------------------------------------------------------------- engine


def test_components_have_names_in_order_files_and_digests(contents):
    mine, torch = contents.certificate.engine
    other = replaced(mine, name="other")

    assert texts(with_engine(contents, mine, other, torch)) == []
    assert texts(with_engine(contents, replaced(mine, files=1), torch)) == []
    disorder = "certificate.json: engine: names are blank, repeated or not in order"
    for engine in ((torch, mine), (mine, mine, torch), (replaced(mine, name=""), torch)):
        assert texts(with_engine(contents, *engine)) == [disorder]
    for fields in ({"files": 0}, {"digest": "1" * 63}, {"digest": "1" * 65}, {"digest": "Z" * 64}):
        (doubt,) = texts(with_engine(contents, replaced(mine, **fields), torch))
        assert doubt.startswith("certificate.json: engine: mine: ")
        assert "files cannot have the digest" in doubt


def test_distributions_have_a_version_and_trees_have_none(contents):
    mine, torch = contents.certificate.engine

    assert texts(with_engine(contents, replaced(mine, version="1"), torch)) == [
        "certificate.json: engine: mine: impossible: a tree of version '1'"
    ]
    nameless = replaced(mine, kind="distribution")
    assert texts(with_engine(contents, nameless, torch)) == [
        "certificate.json: engine: mine: impossible: a distribution of version ''"
    ]


def test_torch_is_among_the_components_in_the_version_that_ran(contents):
    mine, torch = contents.certificate.engine
    ran = contents.result.environment.torch

    assert texts(with_engine(contents, mine)) == [
        f"certificate.json: engine: torch is missing, but result.json ran {ran}"
    ]
    assert texts(with_engine(contents, mine, replaced(torch, version="2.0"))) == [
        f"certificate.json: engine: torch 2.0, but result.json ran {ran}"
    ]


# ------------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"engine": ()}, "engine: the files behind the adapter differ from those in certificate.json"),
        ({"packages": {}}, "packages: not versions of "),
        ({"memory": -1}, "memory: impossible: -1 bytes of memory, "),
        ({"switches": {"HOME": "x"}}, "switches: 'HOME' is not a variable that a package records"),
    ],
    ids=["engine", "packages", "memory", "switches"],
)
def test_what_a_machine_cannot_say_is_doubted_by_its_field(contents, fields, doubt):
    (found,) = texts(with_machine(contents, **fields))

    assert found.startswith(f"environment.json: {doubt}")


def test_a_machine_may_have_no_memory_to_tell(contents):
    assert texts(with_machine(contents, memory=0)) == []


def test_packages_of_a_machine_are_those_that_are_recorded_with_the_torch_that_ran(contents):
    packages = contents.environment[0].packages
    for other in ({**packages, "torch": "2.0"}, {**packages, "more": "1"}):
        (doubt,) = texts(with_machine(contents, packages=other))
        assert doubt.startswith("environment.json: packages: not versions of ")
    blank = {**packages, "msgspec": ""} if "msgspec" in packages else dict.fromkeys(packages, "")
    assert "environment.json: packages: blank" in texts(with_machine(contents, packages=blank))


@pytest.mark.parametrize("field", ["python", "os", "machine", "device", "backend"])
def test_an_environment_names_what_it_is(contents, field):
    assert texts(with_environment(contents, **{field: ""})) == [f"environment.json: {field}: blank"]


def test_a_machine_has_a_processor_and_default_settings(contents):
    (doubt,) = texts(with_environment(contents, cpus=0))
    assert doubt.startswith("environment.json: memory: impossible: ")

    assert texts(with_environment(contents, variables={"default": {}, "other": {}})) == [
        "environment.json: environment.variables: a certification judges under default settings, and records those"
    ]


# ---------------------------------------------------------------------------------------------------- files


def test_the_adapter_s_source_is_there_with_its_name_and_digest(contents):
    one = contents.result.implementation
    blank = "blank, but a certificate contains the digest of the adapter's file"
    for fields in ({"source": ""}, {"source_digest": ""}):
        made = with_certificate(
            with_implementation(contents, **fields),
            source_digest=fields.get("source_digest", one.source_digest),
        )
        assert f"result.json: implementation.source_digest: {blank}" in texts(made)
    others = {name: data for name, data in contents.others.items() if not name.startswith("adapter")}
    assert texts(replaced(contents, others=others)) == ["adapter/mine.py: the adapter's source is missing"]
    assert texts(replaced(contents, others={**others, "adapter/mine.py": b""})) == [
        "adapter/mine.py: not the source named in certificate.json (source_digest)"
    ]


def test_logs_are_there_and_nothing_else_is(contents):
    for log in ("logs/summary.txt", "logs/junit.xml"):
        others = {name: data for name, data in contents.others.items() if name != log}
        assert texts(replaced(contents, others=others)) == [f"{log}: missing"]
    more = replaced(contents, others={**contents.others, "logs/more.txt": b"", "a.txt": b""})
    assert texts(more) == [
        "a.txt: not a file of a certification package",
        "logs/more.txt: not a file of a certification package",
    ]
