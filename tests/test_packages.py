"""The wheel is made of the packages that pyproject.toml names; a folder that is not named would be missing from it."""

import tomllib


def test_every_folder_with_modules_is_named_and_nothing_else(pytestconfig):
    root = pytestconfig.rootpath
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    homes = {folder: package for package, folder in settings["package-dir"].items()}
    found = {
        ".".join([homes[top], *path.parent.relative_to(root / top).parts])
        for top in homes
        for path in (root / top).rglob("*.py")
    }

    assert sorted(settings["packages"]) == sorted(found)
