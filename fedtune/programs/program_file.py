"""Read and check a program file: TOML that says how a program of the user's is run and what it prints.

Everything in it is data.  Each mistake is refused in one line, with the file's line and key, before anything starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtune.core import bounded
from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import one_line
from fedtune.programs import command, fingerprint, flower, metric, space_words
from fedtune.programs.entries import Entry, EntrySource
from fedtune.programs.metric import ProgramMetric
from fedtune.user_code import user_files

LARGEST = 2**20  # bytes of a program file
KEYS = (
    *("name", "command", "folder", "rounds", "first_round", "seed", "file", "metrics", "space", "defaults", "check"),
    *("round_column", "environment", "stall", "longest_round", "pty", "isolate", "reuse", "gpu", "resume_arguments"),
    "report_every",
)
CHECK_KEYS = ("command", "folder", "environment", "metrics", "file")
PATTERN_WITH_ROUND = "'round (?P<round>[0-9]+): acc ([0-9.]+)'"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that trains: how it is run, what it may be given, and what its output means."""

    name: str
    command: tuple[str, ...]
    folder: str  # where it runs
    rounds: int
    metrics: dict[str, ProgramMetric]
    hyper: dict[str, Hyperparameter]  # those that are searched, and those of [defaults] that are fixed
    searched: tuple[str, ...] = ()
    conditions: space_words.Conditions = field(default_factory=dict)
    seed: str = "none"  # or "{seed}", or an environment variable's name
    environment: dict[str, str] = field(default_factory=dict)
    report_every: int | None = None  # the rounds that a report stands for, if that was said
    first_round: int = 1  # the number that the program gives its first round
    file: str | None = None  # that it writes its figures to
    round_column: str = "round"  # of that file: the number of the round; rounds are counted where there is none
    stall: float = 600.0  # seconds without output after which it counts as hung
    longest_round: float = 86400.0  # seconds that a round may take, whatever is printed meanwhile
    pty: bool = False
    isolate: bool = False  # each trial runs in a copy of the folder
    reuse: bool = False  # a process trains one trial after another, and reads their values from stdin
    gpu: str = "visible"  # {gpu} counts the GPUs that the program sees; "machine": it is the machine's number
    resume_arguments: tuple[str, ...] = ()
    check: Program | None = None  # what the final check runs, if it is something else
    notes: tuple[str, ...] = ()  # for the user, one line each
    path: str = ""  # the program file, or the option of a command line
    text: str = ""  # its content

    @property
    def every(self) -> int:
        """The rounds that a report stands for: the k-th is of round k · every."""
        return self.report_every or 1

    @property
    def told_rounds(self) -> bool:
        """Whether the program is given its number of rounds; one that is used again reads it from stdin."""
        return self.reuse or self.uses("rounds")

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """The hyperparameters by name; those that have no range or choices to search are fixed."""
        return dict(self.hyper)

    def defaults(self) -> dict[str, Any]:
        """The default of each hyperparameter."""
        return {name: hp.default for name, hp in self.hyper.items()}

    def configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration with defaults for what it leaves out; UserError for a name or value that cannot be."""
        for name in config:
            if name not in self.hyper:
                raise unknown(f"hyperparameter of {self.name}", name, self.hyper)
        return self.defaults() | {name: self.hyper[name].check(value) for name, value in config.items()}

    def selectable(self, selects_on_test: bool = False) -> dict[str, str]:
        """The metrics that a search may select by, with their directions; "" for one that was not said."""
        return {name: m.mode for name, m in self.metrics.items() if selects_on_test or not m.tests}

    @property
    def reported(self) -> tuple[str, ...]:
        """The metrics of test rows, which are reported and select nothing."""
        return tuple(name for name, m in self.metrics.items() if m.tests)

    def require_selectable(self, name: str, selects_on_test: bool = False) -> None:
        """UserError unless a search may select by this metric."""
        if name not in self.metrics:
            raise unknown(f"metric of {self.name}", name, self.metrics)
        if name not in self.selectable(selects_on_test):
            said = self.metrics[name]
            why = "its split is test" if said.split else "the word test is in its name or pattern"
            raise self.source().error(
                f"metrics.{name}",
                f"a search must not use test data, or test figures would no longer estimate new data, but got {name}: "
                f'{why}; say split = "validation" if it is measured on validation rows, or allow it by '
                "--selects-on-test",
            )

    def checking(self) -> Program:
        """The program of the final check."""
        return self.check or self

    def checkpointed(self) -> bool:
        """Whether the program keeps checkpoints, from which it can go on."""
        return self.uses("checkpoint")

    def uses(self, name: str) -> bool:
        """Whether the program is given this name's value, in its command or environment."""
        return name in command.names([*self.command, *self.environment.values(), *self.resume_arguments])

    def require_rounds(self, rounds: int, said: str) -> None:
        """UserError unless a run of so many rounds ends with a report.  said: who asks for them."""
        if rounds % self.every:
            up = -(-rounds // self.every) * self.every
            raise UserError(
                f"{said}: rounds must be a multiple of report_every, {self.every}, so that a run ends with a "
                f"report, but got {rounds}; give {up}"
            )

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the program in records: its file, command, commit and interpreter."""
        return fingerprint.of(self.text, self.command, Path(self.folder), self.environment.get("PATH"))

    def source(self) -> EntrySource:
        """Where the program was declared, for messages."""
        return _source(self.path, self.text)

    @classmethod
    def from_command(
        cls,
        command: str | Sequence[str],
        metrics: Mapping[str, Any],
        space: Mapping[str, Any],
        rounds: int,
        **options: Any,
    ) -> Program:
        """A program from a command line, in the current folder: as from a file with these entries."""
        given = {"command": command if isinstance(command, str) else list(command), "rounds": rounds}
        text = _toml(given | options | {"metrics": metrics, "space": space})
        return parse(text, "--program", Path.cwd(), "program")

    @classmethod
    def from_flower(
        cls, folder: str | Path, metrics: Iterable[str], space: Mapping[str, Any], **options: Any
    ) -> Program:
        """A Flower app from a command line: as from a file with these entries; those that are None are left out."""
        given = {"flower": str(Path(folder).absolute()), "metrics": {name: {} for name in metrics}, "space": space}
        given |= {name: value for name, value in options.items() if value is not None}
        return parse(_toml(given), "--flower", Path.cwd(), "flower")


def read(path: str | Path) -> Program:
    """The program that a file declares; UserError in one line for anything in it that cannot be."""
    path, gone = Path(path), False
    try:
        content = bounded.read(path, LARGEST)
    except OSError as error:
        gone = True
        content = _copy_of(path, error)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}:{line}: a program file must be UTF-8, but has the byte {content[error.start]:#x}"
        ) from None
    program = parse(text, str(path), path.resolve().parent, path.stem)
    note = f"{path} is gone; the run's own copy of it is used, for the same folder"
    return replace(program, notes=(*program.notes, note)) if gone else program


def _copy_of(path: Path, error: OSError) -> bytes:
    """The content of a program file that a run carries along, where the original is gone."""
    try:
        return user_files.of_content(path).content or b""
    except UserError:
        raise UserError(f"a program file must be readable, but {path}: {error.strerror}") from None


def parse(text: str, path: str, base: Path, stem: str) -> Program:
    """The program of a file's text, as it is also kept in records.

    path: for messages; base: the folder that its paths are relative to; stem: the program's name if it has none.
    """
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is nested too deeply"
        at = re.search(r"at line (\d+)", said)
        line = int(at[1]) if at else text.rstrip().count("\n") + 1
        raise UserError(f"{path}:{line}: a program file must be TOML, but: {one_line(said)}") from None
    source, notes = _source(path, text), list[str]()
    if "flower" in raw:
        raw, notes = flower.entries(Entry(source, "", raw), base)
    made = _made(raw, source, base, stem)
    check = made.check and replace(made.check, path=path, text=text)
    return replace(made, path=path, text=text, check=check, notes=(*made.notes, *notes))


def _source(path: str, text: str) -> EntrySource:
    return EntrySource(path, {}) if path.startswith("--") else EntrySource.of_file(path, text)


def _toml(entries: Mapping[str, Any]) -> str:
    """A program file's text with these entries."""
    return "".join(f"{_word(name)} = {_value(value)}\n" for name, value in entries.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_word(name)} = {_value(inner)}' for name, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _word(value) if isinstance(value, str) else command.text(value)


def _word(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _made(raw: Mapping[str, Any], source: EntrySource, base: Path, stem: str) -> Program:
    top = Entry(source, "", raw)
    given = top.table(KEYS)
    for key in ("command", "rounds", "metrics"):
        if key not in given:
            example = {
                "command": "'python train.py --lr {lr}'",
                "rounds": "100",
                "metrics": "a table [metrics.val_acc]",
            }[key]
            raise source.error("", f"{key} must be there, but is missing; for example {example}")
    space = given["space"].table() if "space" in given else {}
    hyper, notes = _hyper(space, given["defaults"].table() if "defaults" in given else {}, source)
    program = Program(
        name=given["name"].text('"fedavg"') if "name" in given else stem,
        command=given["command"].words('"python train.py --lr {lr}"'),
        folder=str(_folder(given, base)),
        rounds=given["rounds"].whole(1),
        metrics=_metrics(given),
        hyper=hyper,
        searched=tuple(space),
        conditions=space_words.conditions(space, hyper),
        environment=_environment(given),
        file=_file(given),
        notes=tuple(notes),
        **_options(given),
    )
    program.require_rounds(program.rounds, source.place("rounds"))
    _require_names(program, given, source)
    program = replace(program, **_seed(program, given, source))
    _require_runs(program, given["command"])
    _require_checkpoints(program, given, source)
    return replace(program, check=_program_of_check(program, given["check"], base)) if "check" in given else program


def _options(given: Mapping[str, Entry]) -> dict[str, Any]:
    """The options that were given, by name."""
    take = {
        "report_every": lambda e: e.whole(1),
        "first_round": lambda e: e.whole(0),
        "round_column": lambda e: e.text('"epoch"'),
        "stall": lambda e: e.number(above=0),
        "longest_round": lambda e: e.number(above=0),
        "pty": lambda e: e.flag(),
        "isolate": lambda e: e.one_of("copy") == "copy",
        "reuse": lambda e: e.flag(),
        "gpu": lambda e: e.one_of("visible", "machine"),
        "resume_arguments": lambda e: e.words('"--resume"'),
    }
    return {key: function(given[key]) for key, function in take.items() if key in given}


def _hyper(
    space: Mapping[str, Entry], given: Mapping[str, Entry], source: EntrySource
) -> tuple[dict[str, Hyperparameter], list[str]]:
    found, notes = {}, []
    for name, entry in (*space.items(), *given.items()):
        if not re.fullmatch(command.NAME, name) or name in command.OWN or name in metric.TAKEN:
            rule = "be a letter, then letters, digits, _ . and -" if not re.fullmatch(command.NAME, name) else "be free"
            what = "; fedtune gives it itself" if rule == "be free" else "; for example lr"
            raise source.error(entry.key, f"a hyperparameter's name must {rule}, but got {name!r}{what}")
    for name, entry in space.items():
        found[name], note = space_words.hp(name, entry, given.get(name))
        notes += [note] if note else []
    return found | {n: space_words.fixed(n, e) for n, e in given.items() if n not in space}, notes


def _metrics(given: Mapping[str, Entry]) -> dict[str, ProgramMetric]:
    entries = given["metrics"].table(example="for example [metrics.val_acc]")
    if not entries:
        raise given["metrics"].refuse("a table with a metric or more", "for example [metrics.val_acc]")
    found = {name: metric.read(name, entry, "file" in given) for name, entry in entries.items()}
    if clash := [
        name for part in ("space", "defaults") if part in given for name in given[part].value if name in found
    ]:
        raise given["metrics"].source.error(
            f"metrics.{clash[0]}", f"a metric and a hyperparameter must differ in name, but both have {clash[0]!r}"
        )
    return found


def _folder(given: Mapping[str, Entry], base: Path) -> Path:
    if "folder" not in given:
        return base
    folder = os.path.normpath(base / os.path.expanduser(given["folder"].text('"PFLlib/system"')))
    if not os.path.isdir(folder):
        raise given["folder"].refuse("a folder that is there", f"there is none at {one_line(folder)}")
    return Path(folder)


def _environment(given: Mapping[str, Entry]) -> dict[str, str]:
    found = {}
    for name, entry in given["environment"].table().items() if "environment" in given else ():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name.startswith("FEDTUNE_"):
            raise entry.source.error(
                entry.key, f"environment must have names of variables, not of fedtune's own, but got {name!r}"
            )
        if isinstance(entry.value, bool) or not isinstance(entry.value, str | int | float) or "\0" in str(entry.value):
            raise entry.refuse("text or a number")
        found[name] = str(entry.value)
    return found


def _file(given: Mapping[str, Entry]) -> str | None:
    if "file" not in given:
        return None
    text = given["file"].text('"results/{trial}.csv"')
    if not text.endswith((".csv", ".tsv", ".jsonl", ".ndjson", "/")):
        raise given["file"].refuse(
            "a file that ends in .csv, .tsv or .jsonl, or a folder of TensorBoard's files with / at its end"
        )
    return text


def _require_names(program: Program, given: Mapping[str, Entry], source: EntrySource) -> None:
    """UserError for an unknown name in braces, a hyperparameter that nothing uses, or a file that trials share."""
    known = [*program.hyper, *command.OWN]
    if program.file is not None and "file" in given:
        of_file = {*given["file"].names([program.file], known)}
        if not program.isolate and not of_file & {"trial", "folder", "checkpoint"}:
            raise given["file"].refuse(
                "another one for every trial", 'two at once would write it; give for example "results/{trial}.csv"'
            )
    if program.reuse:
        _require_reusable(program, given, source)
        return
    used = {*given["command"].names(program.command, known)}
    _require_fills(program, given["command"])
    for name, text in program.environment.items():
        used |= {*given["environment"].child(name).names([text], known)}
    if "resume_arguments" in given:
        given["resume_arguments"].names(program.resume_arguments, known)
    whole = given["command"].key == "command"  # not [check]'s
    for name in program.hyper if whole else program.searched:
        if name not in used:
            table = "space" if name in program.searched else "defaults"
            where = "command or environment" if whole else "[check]'s command"
            raise source.error(
                f"{table}.{name}",
                f"{given['command'].key} must use every hyperparameter, but {name} would change nothing; write "
                f"{{{name}}} in {where}",
            )


def _require_fills(program: Program, entry: Entry) -> None:
    """UserError for a choice or default that a shell would read as something else."""
    usual = dict.fromkeys(command.OWN, 0) | program.defaults()
    for name, hp in program.hyper.items():
        for choice in (usual[name], *(hp.choices or ())):
            try:
                command.fill(program.command, usual | {name: choice})
            except UserError as error:
                raise entry.source.error(entry.key, f"{entry.key}: {error}") from None


def _require_reusable(program: Program, given: Mapping[str, Entry], source: EntrySource) -> None:
    """UserError for what only a process of its own can have: with `reuse` one trains many trials."""
    advice = "with reuse = true it reads a trial's values from stdin"
    texts = [(given["command"], program.command)]
    texts += [(given["environment"].child(name), (text,)) for name, text in program.environment.items()]
    for entry, words in texts:
        if found := command.names(list(words)):
            raise entry.refuse("the same for every trial", f"it has {{{found[0]}}}; {advice}")
    for key in ("isolate", "pty", "resume_arguments"):
        if key in given:
            raise given[key].refuse("left out", advice)


def _seed(program: Program, given: Mapping[str, Entry], source: EntrySource) -> dict[str, Any]:
    """How the program is seeded; where nothing says so, by {seed} if the command has it."""
    in_command = program.uses("seed") or (program.reuse and "seed" in given and given["seed"].value == "{seed}")
    if "seed" not in given:
        note = f"{program.name} is given no seed: the same configuration may give other figures each time"
        return {"seed": "{seed}"} if in_command else {"seed": "none", "notes": (*program.notes, note)}
    said = given["seed"].text('"none"')
    if said == "{seed}" and not in_command:
        raise given["seed"].refuse("in the command", 'write {seed} there; or seed = "none" if it has none')
    if said != "{seed}" and in_command:
        raise given["seed"].refuse("'{seed}', as the command has it")
    if program.reuse and said not in ("none", "{seed}"):
        raise given["seed"].refuse("'none' or '{seed}'", "with reuse = true the seed is among the values on stdin")
    if said not in ("none", "{seed}") and not re.fullmatch(r"[A-Za-z_]\w*", said):
        raise given["seed"].refuse("'none', '{seed}' or the name of an environment variable")
    return {"seed": said}


def _require_runs(program: Program, entry: Entry) -> None:
    """UserError if the command is not found, or the script that it gives to Python."""
    first = program.command[0]
    if "{" in first:
        return
    place = str(Path(program.folder) / first) if "/" in first else first
    found = shutil.which(place, path=program.environment.get("PATH"))
    if not found:
        there = os.path.isfile(Path(program.folder, first))
        advice = f"write 'python {first}', or make it executable" if there else "install it, or give its whole path"
        raise entry.source.error(
            entry.key, f"{entry.key} must begin with a program, but {first!r} is not found; {advice}"
        )
    script = next((word for word in program.command[1:2] if word.endswith(".py") and "{" not in word), None)
    if script and re.match(r"python[\d.]*$", Path(first).name) and not os.path.isfile(Path(program.folder, script)):
        raise entry.source.error(
            entry.key,
            f"{entry.key} must name a script that is there, but {script!r} is not in {program.folder}; say its folder",
        )


def _require_checkpoints(program: Program, given: Mapping[str, Entry], source: EntrySource) -> None:
    """UserError if a program that goes on from checkpoints does not say which rounds its figures are of."""
    if program.resume_arguments and not program.checkpointed():
        raise given["resume_arguments"].refuse(
            "beside {checkpoint}", "write {checkpoint} in the command: a folder for it"
        )
    if not program.checkpointed():
        return
    for name, m in program.metrics.items():
        if m.pattern and "round" not in metric.compiled(m.pattern).groupindex:
            raise source.error(
                f"metrics.{name}.pattern",
                f"with {{checkpoint}} a pattern must also find the number of the round, or rounds could be counted "
                f"wrongly after the program goes on, but got {m.pattern!r}; for example {PATTERN_WITH_ROUND}",
            )


def _program_of_check(program: Program, entry: Entry, base: Path) -> Program:
    """The program of the final check: the same but for what [check] says."""
    given = entry.table(CHECK_KEYS)
    if not given:
        raise entry.refuse("a table with what differs", "for example command")
    more: dict[str, Any] = {}
    if "command" in given:
        more["command"] = given["command"].words('"python train.py --lr {lr}"')
    if "folder" in given:
        more["folder"] = str(_folder(given, base))
    if "environment" in given:
        more["environment"] = program.environment | _environment(given)
    if "file" in given:
        more["file"] = _file(given)
    if "metrics" in given:
        with_file = {"file": entry} if more.get("file", program.file) else {}
        more["metrics"] = _metrics({"metrics": given["metrics"], **with_file})
    checked = replace(program, **more, notes=(), check=None)
    entries = {"command": entry, "environment": entry} | given
    entries["environment"] = Entry(entry.source, entry.key, checked.environment)
    _require_names(checked, entries, entry.source)
    if (program.seed == "{seed}") != checked.uses("seed") and not program.reuse:
        raise entries["command"].source.error(
            entries["command"].key,
            "the final check must be seeded as the search is, but only one has {seed}; write it in both",
        )
    _require_runs(checked, entries["command"])
    _require_checkpoints(checked, given, entry.source)
    return checked
