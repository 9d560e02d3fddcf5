"""What README and the pages of docs/ say is true: links, paths, commands, snippets, tables."""

import argparse
import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedtune
from fedtune.__main__ import COMMANDS
from fedtune.commands import completion
from fedtune.core.hyper import hyperparameters
from fedtune.core.metrics import METRICS
from fedtune.data.datasets import names as dataset_names
from fedtune.experiment import registry
from fedtune.experiment.scenario import PARTITIONS, Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.studies.options import variant
from fedtune.tuning.schedulers import SCHEDULERS
from fedtune.tuning.searchers import SEARCHERS
from fedtune.user_code import user_files

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# the change log speaks of what was; its paths and commands need not exist any more
PAGES = ["README.md", "deploy/README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
LIVING = [*PAGES, "analysis/example/README.md"]
TOP = ("analysis", "benchmarks", "deploy", "docs", "fedtune", "search_spaces", "tests", "trainables")
INVENTED = re.compile(r"\b(x|test_x|fednorm)\.py|path/to/")  # files that an example would make


class Parsed(BaseException):
    """A command line was taken: nothing else happens."""


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`|]+)` \|", text, re.M)


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def generator() -> ModuleType:
    """docs/generate.py, which is a script and no package's module."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shell_lines() -> Iterator[tuple[str, str]]:
    """Every page's command lines: of its shell blocks, and those of fedtune and Python in its text."""
    for name in LIVING:
        text = (ROOT / name).read_text()
        for line in "\n".join(fences(text, "bash")).replace("\\\n", " ").splitlines():
            of_job = re.sub("^ray job submit .*?-- +", "", line).replace("python -m fedtune ", "fedtune ")
            yield from ((name, part.strip()) for part in of_job.split("&&"))
        yield from ((name, code) for code in re.findall(r"`((?:fedtune|python -m) [^`]+)`", prose(text)))


def words_of(line: str) -> list[str]:
    """The arguments of a command line without its place holders: `RUN…` is RUN, and `[NAME]` and `…` are left out."""
    words = [word.rstrip("…,") for word in shlex.split(line) if not word.startswith("[")]
    return [word for word in words if word and word != "--help"]


def lines_like(pattern: str) -> list[tuple[str, str]]:
    return sorted({(name, line) for name, line in shell_lines() if re.match(pattern, line)})


RESEARCH = "analysis.(reproduce|tabulate|simulate|split_validation) "
FEDTUNE_LINES = lines_like(rf"([\w./]+/)?(fedtune |python3? -m fedtune\.((?!analysis)|{RESEARCH}))")
MODULE_LINES = lines_like(r"([\w./]+/)?python3? -m (?!fedtune(?!\.analysis)|venv)")


def test_readme_is_short() -> None:
    assert len(README.encode()) <= 6144


@pytest.mark.parametrize("name", [*LIVING, "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    file = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(file.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text()), target


def test_every_page_is_linked_from_the_index_and_that_from_readme() -> None:
    index = ROOT / "docs" / "index.md"
    targets = re.findall(r"\]\(([^)\s#]+)", index.read_text())
    linked = {(index.parent / target).resolve().relative_to(ROOT) for target in targets}
    assert {str(path) for path in linked} >= {*PAGES} - {"README.md", "docs/index.md"}
    assert "](docs/index.md)" in README


@pytest.mark.parametrize("name", LIVING)
def test_paths_that_are_named_exist(name: str) -> None:
    for code in re.findall(r"`([^`\n]+)`", prose((ROOT / name).read_text())):
        for word in code.split():
            if re.fullmatch(rf"({'|'.join(TOP)})/[\w./-]*", word) and not INVENTED.search(word):
                assert (ROOT / word).exists(), word


@pytest.mark.parametrize("name", ["how-to/contributing", "background/architecture"])
def test_files_of_a_package_that_are_named_exist(name: str) -> None:
    tops = [ROOT, *(ROOT / "fedtune").rglob("")]
    for word in re.findall(r"`(\w+(?:/\w+)*\.py)`", page(name)):
        assert INVENTED.search(word) or any((top / word).exists() for top in tops), word


@pytest.mark.parametrize(("name", "line"), FEDTUNE_LINES, ids=lambda text: text[:60])
def test_a_command_line_is_one_that_its_command_takes(name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of(line)
    command, argv = (words[1], words[2:]) if words[0] == "fedtune" else (words[2].partition(".")[2], words[3:])
    if command == "--print-completion":
        assert argv[0] in completion.SHELLS
        return
    assert command in COMMANDS or re.match(RESEARCH, f"{command} ")
    if argv:  # `fedtune compare` in a sentence is the command's name
        arguments = taken(command, argv, monkeypatch)
        check_names(arguments)


def taken(command: str, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command's parser makes of the arguments; nothing else of the command happens."""
    parse = argparse.ArgumentParser.parse_args

    def only_parse(self: argparse.ArgumentParser, *given: Any, **more: Any) -> Any:
        raise Parsed(vars(parse(self, *given, **more)))

    module = importlib.import_module(f"fedtune.{command if '.' in command else f'commands.{command}'}")
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        with pytest.raises(Parsed) as caught:
            module.main(argv)
    return caught.value.args[0]


def check_names(arguments: dict[str, Any]) -> None:
    """Algorithms and settings that a command line names are there; capitals are place holders, files a page's own."""
    for value in (arguments.get("algo"), arguments.get("algos")):
        typed = [variant(one)[0] for one in user_files.split(value or "")]
        names = {name for name in typed if not (user_files.is_reference(name) or name.endswith(".toml"))}
        assert not value or value.isupper() or names <= set(registry.names()), value
    scenario = arguments.get("scenario")
    assert not scenario or scenario.isupper() or scenario in SCENARIOS
    for text in [*(arguments.get("set") or []), *(arguments.get("vary") or [])]:
        hp = text.partition("=")[0]
        known = [hyperparameters(Scenario), *(hyperparameters(registry.find(a)) for a in registry.names())]
        assert hp == "name" or any(hp in some for some in known), text


@pytest.mark.parametrize(("name", "line"), MODULE_LINES, ids=lambda text: text[:60])
def test_modules_that_are_run_exist(name: str, line: str) -> None:
    words = words_of(line)
    assert importlib.util.find_spec(words[words.index("-m") + 1])


def test_every_command_and_every_choice_of_a_search_is_on_its_page() -> None:
    cells = first_cells(page("reference/commands"))
    table = [cell.split()[1] for cell in cells if cell.startswith("fedtune ")]
    assert sorted(table) == sorted(COMMANDS)
    assert set(SCHEDULERS) <= set(first_cells(page("how-to/search")))
    assert list(SEARCHERS) == re.findall(r"`--searcher ([a-z0-9 |]+)`", page("how-to/search"))[0].split(" | ")


def test_table_of_algorithms_is_that_of_the_code() -> None:
    assert first_cells(section(page("reference/algorithms"), "What each sends")) == registry.names()


def test_every_data_set_and_partition_is_described() -> None:
    for name in dataset_names():
        assert f"`{name}`" in section(page("reference/data"), "Data sets")
    assert set(first_cells(section(page("reference/data"), "Partitions"))) - {"--partition"} == set(PARTITIONS)


def test_generated_parts_are_those_of_the_declarations() -> None:
    generate = generator()
    for name in generate.PAGES:
        text = (ROOT / "docs" / name).read_text()
        assert generate.filled(text) == text, f"{name} is out of date: python docs/generate.py"
    pages = "".join(page(name.removesuffix(".md")) for name in (*generate.PAGES, generate.ABOUT))
    found = re.findall(r"^<!-- (?!end|python)(.+) -->$", pages, re.M)
    assert sorted(found) == sorted(generate.PARTS)


def test_rooms_are_about_as_large_as_their_table_says() -> None:
    generate = generator()
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| [\d.]+ \|$", page("background/architecture"), re.M)
    assert [room for room, _ in rows] == [*generate.ROOMS]
    for room, lines in rows:
        assert generate.thousand_lines(room) == pytest.approx(float(lines), rel=0.1, abs=0.1), "python docs/generate.py"


def test_every_metric_setting_algorithm_and_hyperparameter_is_on_its_page() -> None:
    assert set(METRICS) <= set(first_cells(page("reference/metrics")))
    assert set(SCENARIOS) <= set(first_cells(page("reference/scenarios")))
    for name in registry.names():
        assert set(hyperparameters(registry.find(name))) <= set(
            first_cells(section(page("reference/algorithms"), name))
        )


@pytest.mark.parametrize("name", [n for n in PAGES if n != "docs/how-to/python.md"])
def test_python_snippets_import_what_is_there(name: str) -> None:
    for code in fences((ROOT / name).read_text(), "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedtune":
                assert hasattr(fedtune, node.attr)


def test_dataframes_of_the_report_page_are_made_as_it_says() -> None:
    (code,) = fences(page("how-to/report"), "python")
    names: dict[str, Any] = {}
    load, show, plot = code.replace("runs/NAME", str(ROOT / "analysis/example/search")).strip().split("\n")[1:]
    exec(
        f"from fedtune.analysis import frames, plots\n{load}\nbest = {show}\nfigure = {plot.removesuffix('.show()')}",
        names,
    )
    assert names["best"]["last_val_acc"].is_monotonic_decreasing and names["figure"].data


def test_published_figures_are_read_as_the_reproduce_page_says() -> None:
    (code,) = fences(page("how-to/reproduce"), "python")
    names: dict[str, Any] = {}
    exec(code.replace("published.cells()", "cells = published.cells()"), names)
    assert len(names["cells"]) > 100
