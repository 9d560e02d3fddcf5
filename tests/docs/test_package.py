"""What is installed, cited and released is what the repository says."""

import fnmatch
import re
import tomllib
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from setuptools import find_packages

import fedtune
from fedtune.core import about

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> list[str]:
    return find_packages(str(ROOT), include=project()["tool"]["setuptools"]["packages"]["find"]["include"])


def test_every_folder_of_code_is_a_package_of_the_wheel() -> None:
    tops = ("fedtune", "fedtune/trainables", "fedtune/search_spaces", "fedtune/analysis")
    folders = {file.parent.relative_to(ROOT) for top in tops for file in (ROOT / top).rglob("*.py")}
    assert sorted(".".join(f.parts) for f in folders - {Path("fedtune/analysis/example")}) == sorted(packages())


def test_every_file_that_fedtune_reads_is_in_the_wheel() -> None:
    data = project()["tool"]["setuptools"]["package-data"]
    for file in (ROOT / "fedtune").rglob("*"):
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            package = ".".join(file.parent.relative_to(ROOT).parts)
            assert any(fnmatch.fnmatch(file.name, pattern) for pattern in data.get(package, [])), file


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].split("\n")[0]
    assert cited["version"] == newest == fedtune.__version__
    assert project()["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedtune.core.about.VERSION"}


def test_the_licence_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project()["project"]["license"] == cited["license"] == "Apache-2.0"
    for file in project()["project"]["license-files"]:
        text = (ROOT / file).read_text()
        assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"] and "END OF TERMS AND CONDITIONS" in text


def test_constraints_hold_the_development_tools() -> None:
    known = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()}
    for text in project()["project"]["optional-dependencies"]["dev"]:
        assert re.split(r"[\[>]", text)[0].lower() in known, text


def test_messages_name_pages_that_are_there_at_the_publishers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "".join(file.read_text() for file in (ROOT / "fedtune").rglob("*.py"))
    named = set(re.findall(r"\bpage\('(.+?)'\)", code))
    assert len(named) == 3 and all((ROOT / "docs" / f"{name}.md").is_file() for name in named)
    published = Message()
    monkeypatch.setattr(about, "metadata", lambda name: published)
    assert about.page("how-to/model") == "docs/how-to/model.md"
    published["Project-URL"] = "Source, https://example.org/code"
    published["Project-URL"] = "Documentation, https://example.org/fedtune/"
    assert about.page("how-to/model") == "https://example.org/fedtune/how-to/model.html"
