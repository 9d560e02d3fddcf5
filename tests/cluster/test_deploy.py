"""The files of deploy/ fit what reads them: Ray's and Kubernetes' schemas, fedtune's own arguments, a shell."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.dashboard.modules.job import cli as job_commands
from ray.scripts import scripts
from support.waiting import wait_for

import fedtune
from fedtune.commands import search
from fedtune.core.about import FORMAT
from fedtune.runs import logs
from fedtune.tuning import plan
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SHARED = "/shared"  # where every node has what all of them see
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))


def documents() -> list[dict[str, Any]]:
    """Everything that kubectl is given."""
    return [d for file in MANIFESTS for d in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (d for d in documents() if d["kind"] == kind)
    return found


def cluster_specs() -> list[dict[str, Any]]:
    return [of_kind("RayCluster")["spec"], of_kind("RayJob")["spec"]["rayClusterSpec"]]


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods that KubeRay would make of a cluster, without what it adds to them."""
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}} | g["template"] for g in groups]


def test_kuberay_has_the_fields_that_its_objects_are_given() -> None:
    """Those of its CRDs ray.io/v1 of v1.7.0, as far as they are used here: Kubernetes' schema does not have them."""
    params = {"rayStartParams", "template"}
    for cluster in cluster_specs():
        assert cluster.keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
        assert cluster["authOptions"].keys() == {"mode", "secretName"}
        assert cluster["headGroupSpec"].keys() == {"serviceType", "enableIngress"} | params
        for group in cluster["workerGroupSpecs"]:
            assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas"} | params
    job = {"entrypoint", "runtimeEnvYAML", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit"}
    assert of_kind("RayJob")["spec"].keys() - {"metadata"} == job | {"rayClusterSpec"}
    for made in map(of_kind, ("RayCluster", "RayJob")):
        assert made.keys() == {"apiVersion", "kind", "metadata", "spec"} and made["apiVersion"] == "ray.io/v1"
        assert re.fullmatch("[a-z]([-a-z0-9]{0,45}[a-z0-9])?", made["metadata"]["name"])


def test_kubernetes_has_the_fields_that_pods_and_claims_are_given() -> None:
    """By its own schema, strictly read."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for thing in [*(p for spec in cluster_specs() for p in pods(spec)), of_kind("PersistentVolumeClaim")]:
        kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


def test_every_pod_has_the_shared_claim_a_token_and_a_place() -> None:
    """The search keeps its run in the claim; pods are reached from the cluster alone, and call nobody."""
    claim = of_kind("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert shlex.split(of_kind("RayJob")["spec"]["entrypoint"])[1].startswith(f"{SHARED}/")
    shared = (DEPLOY / "kuberay" / "shared.yaml").read_text()
    secret = re.search(r"kubectl create secret generic (\S+) --from-literal=auth_token=", shared)
    assert secret and "docker-registry fedtune-registry" in shared
    for spec in cluster_specs():
        assert spec["authOptions"] == {"mode": "token", "secretName": secret[1]}
        assert spec["headGroupSpec"]["serviceType"] == "ClusterIP" and not spec["headGroupSpec"]["enableIngress"]
        for pod in (pod["spec"] for pod in pods(spec)):
            (volume,) = pod["volumes"]
            assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
            assert pod["imagePullSecrets"] == [{"name": "fedtune-registry"}]
            for container in pod["containers"]:
                assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": SHARED}]
                assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]
            gpus = any("nvidia.com/gpu" in c["resources"]["limits"] for c in pod["containers"])
            tolerated = {t["key"] for t in pod.get("tolerations", [])}
            assert (tolerated == {"nvidia.com/gpu"}) is gpus and ("nodeSelector" in pod) is gpus


def test_pods_run_what_is_here() -> None:
    image = re.search(r"-t (\S+)", (DEPLOY / "Dockerfile").read_text())
    assert image and image[1].endswith(f":{fedtune.__version__}")
    staying, own = cluster_specs()
    assert staying == own
    assert staying["rayVersion"] == version("ray")
    assert {c["image"] for p in pods(staying) for c in p["spec"]["containers"]} == {image[1]}


def test_the_job_cleans_up_is_tried_again_and_may_write_its_record() -> None:
    spec = of_kind("RayJob")["spec"]
    assert spec["shutdownAfterJobFinishes"] and spec["backoffLimit"] > 0
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}}
    assert Path(shlex.split(spec["entrypoint"])[0]).name in {s.name for s in SCRIPTS}


def test_the_image_is_built_from_all_packages_and_the_tested_versions() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    sources = [w for line in re.findall(r"^COPY (.+)$", lines, re.M) for w in line.split()[:-1]]
    assert all((ROOT / s).exists() for s in sources)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = [pattern.removesuffix("*") for pattern in packages["find"]["include"]]
    assert {*packages, "constraints.txt", "pyproject.toml"} <= set(sources)
    assert "-c constraints.txt" in lines
    assert {c["securityContext"]["runAsUser"] for c in (p["spec"] for p in pods(cluster_specs()[0]))} == {
        int(re.findall(r"--uid (\d+)", lines)[0])
    }


def test_ray_up_takes_the_cluster_file_and_starts_ray_with_a_token_on_loopback() -> None:
    written = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    config = prepare_config(copy.deepcopy(written))
    validate_config(config)  # Ray's own schema
    (kind,) = config["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == len(written["provider"]["worker_ips"])
    assert written["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    starts = [written["head_start_ray_commands"][-1], written["worker_start_ray_commands"][-1]]
    for line in starts:
        words = shlex.split(line)
        at = words.index("ray")
        settings = dict(w.split("=", 1) for w in words[1:at])
        assert settings["RAY_AUTH_MODE"] == "token" and settings["RAY_USAGE_STATS_ENABLED"] == "0"
        assert words[at + 1] == "start"
        assert scripts.start.make_context("start", words[at + 2 :]).params["disable_usage_stats"]  # all are known
    head = scripts.start.make_context("start", shlex.split(starts[0].split("ray start ")[1])).params
    assert head["head"] and head["dashboard_host"] == "127.0.0.1"
    assert any("-c ~/fedtune/constraints.txt" in line for line in written["setup_commands"])
    assert written["initialization_commands"] == [f"test -w {SHARED}"]


def command_lines() -> list[tuple[str, str]]:
    """Every line in deploy/ that runs fedtune: the file, and from the program on."""
    found = []
    for file in [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("*.md"), *SCRIPTS]:
        for line in re.sub(r"\\\n *#?", "", file.read_text()).splitlines():
            if command := re.match(r"[# ]*((ray job submit|fedtune (search|resume|status)|sbatch) .+)", line):
                found.append((file.name, command[1].split("  #")[0]))
    return [*found, ("rayjob.yaml", of_kind("RayJob")["spec"]["entrypoint"])]


def require_search(words: list[str], tmp_path: Path) -> SearchOptions:
    """The options of a search, when all that can be told before it starts is well."""
    options = SearchOptions(**arguments.given(search.parser().parse_args(words), SearchOptions))
    plan.make(dataclasses.replace(options, address="auto", storage_path=str(tmp_path)))
    return options


def test_every_command_line_is_one_that_fedtune_takes(tmp_path: Path) -> None:
    seen = set()
    for file, line in command_lines():
        words = shlex.split(line)
        seen.add(words[0])
        if words[0] == "sbatch":
            words = words[words.index("deploy/slurm.sh") + 1 :]
            if words and words[0].startswith("-"):
                require_search(words, tmp_path)
            elif words:
                importlib.import_module(f"fedtune.commands.{words[0]}").parser().parse_args(words[1:])
        elif words[0] == "search-or-resume.sh":
            assert words[1].startswith(f"{SHARED}/"), file
            require_search(words[2:], tmp_path)
        elif words[0] == "ray":
            at = words.index("--")
            job = job_commands.submit.make_context("submit", words[3:]).params
            assert job["address"].startswith("http://127.0.0.1:"), file
            assert words[at + 1 : at + 4] == ["python", "-m", "fedtune.search"], file
            options = require_search(words[at + 4 :], tmp_path)
            assert options.storage_path.startswith(f"{SHARED}/") and options.address == "auto", file
    assert {"sbatch", "search-or-resume.sh", "ray"} <= seen


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_scripts_are_sound(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not here (Debian: apt-get install shellcheck)")
    checked = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


PLACE = ["--storage-path", "{0}", "--name", "r", "--address", "auto"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--algo", "a"], ["fedtune", "search", "--algo", "a", *PLACE]),
        (["compare", "--algos", "a,b"], ["fedtune", "compare", "--algos", "a,b", *PLACE]),
        (["reproduce", "t1", "--quick"], ["fedtune.analysis.reproduce", "t1", "--quick", *PLACE]),
        (["tabulate", "--algo", "a"], ["fedtune.analysis.tabulate", "--algo", "a", *PLACE]),
        (["resume", "old", "--trials", "+8"], ["fedtune", "resume", "old", "--trials", "+8", *PLACE[2:]]),
        (["replay", "old"], ["fedtune", "replay", "old", *PLACE[2:]]),
    ],
)
def test_a_job_runs_any_command_that_trains(arguments: list[str], command: list[str], tmp_path: Path) -> None:
    said = begun(tmp_path, "r", *arguments)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == ["-m", *(word.format(tmp_path) for word in command)]
    module = f"fedtune.commands.{command[1]}" if command[0] == "fedtune" else command[0]
    parser = importlib.import_module(module).parser()
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert {word for word in said.stdout.split() if word.startswith("--")} <= known


def begun(folder: Path, run: str, *arguments: str, really: bool = False) -> subprocess.CompletedProcess[str]:
    """What search-or-resume.sh would have Python do; what it does."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "python").write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\necho "$@"\n')
    (programs / "python").chmod(0o755)
    command = ["bash", DEPLOY / "search-or-resume.sh", folder / run, *arguments]
    path = f"{Path(sys.executable).parent if really else programs}:{os.environ['PATH']}"
    return subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def test_a_job_goes_on_with_a_search_or_a_comparison_and_knows_no_other_command(tmp_path: Path) -> None:
    for record in ("run.json", "compare.json"):
        (tmp_path / record[:3]).mkdir()
        (tmp_path / record[:3] / record).write_text('{"state": "interrupted"}')
        said = begun(tmp_path, record[:3], "compare", "--algos", "a,b")
        assert said.stdout.split() == ["-m", "fedtune", "resume", f"{tmp_path}/{record[:3]}", "--address", "auto"]
    said = begun(tmp_path, "r", "partition", "--clients", "3")
    assert said.returncode == 2 and said.stderr.endswith("resume or replay, but got partition\n")


@pytest.mark.parametrize(
    ("gpus", "cpus", "arguments", "said"),
    [
        (8, 64, "--gpus-per-trial 0.5", ""),
        (8, 64, "--gpus-per-trial=0.5 --cpus-per-trial 4", ""),
        (1, 8, "--gpus-per-trial 0.5", ""),
        (0, 8, "", ""),
        (8, 8, "--gpus-per-trial auto", ""),
        (8, 8, "compare --gpus-per-trial 0.5", "error: 16 trials fit into 8 GPUs, and need 16 CPUs, but a node has 8"),
        (8, 16, "--gpus-per-trial 0.5 --cpus-per-trial 4", "error: 16 trials fit into 8 GPUs, and need 64 CPUs, but"),
        (1, 8, "--gpus-per-trial 0.1", "note: 10 trials fit into 1 GPUs, but only 8 into 8 CPUs"),
        (2, 8, "--trials 9", "note: 2 GPUs a node, of which trials use none: give --gpus-per-trial"),
    ],
)
def test_a_job_whose_cpus_and_gpus_do_not_fit_is_refused_before_ray(
    gpus: int, cpus: int, arguments: str, said: str, tmp_path: Path
) -> None:
    slurm = {"CPUS_PER_TASK": cpus, "GPUS_ON_NODE": gpus, "JOB_NAME": "job", "SUBMIT_DIR": tmp_path, "JOB_ID": 1}
    settings = {n: v for n, v in os.environ.items() if not n.startswith("SLURM_")} | {"FEDTUNE_VENV": "/nowhere"}
    settings |= {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    command = ["bash", DEPLOY / "slurm.sh", *arguments.split()]
    ended = subprocess.run(command, env=settings, capture_output=True, text=True)
    lines = [line for line in ended.stderr.splitlines() if "/nowhere/bin/activate" not in line]
    assert len(lines) == bool(said) and not ended.stdout and all(line.startswith(said) for line in lines)
    assert (ended.returncode == 2) is said.startswith("error") and not list(tmp_path.iterdir())


APART = "unshare --user --map-current-user --pid --fork --kill-child --mount-proc"
SEARCH = (
    "--algo fedavg --clients 4 --rounds 8 --trials 4 --searcher random --scheduler none --max-concurrent 2 "
    "--set local_epochs=4 --final-seeds 0"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with stand-ins for Slurm's commands: one node, the one we are on."""
    # without a namespace Ray would refuse to start beside another, and stop it in the end
    if not shutil.which("unshare") or subprocess.run([*APART.split(), "true"], capture_output=True).returncode:
        pytest.skip("this system gives users no process namespaces of their own")
    assert APART in (DEPLOY / "slurm.sh").read_text()
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    for name, body in {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "scontrol": f'echo "$@" >> {folder}/scontrol.log',
    }.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    yield folder
    for left in leftovers(folder):
        shutil.rmtree(left, ignore_errors=True)


def job(node: Path, restarts: int) -> subprocess.Popen:
    """The batch script as Slurm starts it."""
    slurm = {"SUBMIT_DIR": ROOT, "JOB_ID": 100_000_000 + os.getpid(), "JOB_NAME": "job", "JOB_NUM_NODES": 1}
    slurm |= {"CPUS_PER_TASK": 2, "RESTART_COUNT": restarts}
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM_"))}
    settings |= {"PATH": f"{node}/bin:{os.environ['PATH']}", "FEDTUNE_VENV": f"{node}/venv"}
    settings |= {"FEDTUNE_RUN": f"{the_run(node)}"} | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    script = shutil.copy(DEPLOY / "slurm.sh", node)  # Slurm runs a copy, elsewhere
    with (node / f"{restarts}.log").open("w") as log:
        how: dict[str, Any] = {"env": settings, "cwd": ROOT, "stdout": log, "stderr": log, "start_new_session": True}
        return subprocess.Popen(["bash", script, *SEARCH.split()], **how)


def the_run(node: Path) -> Path:
    return node / "runs" / f"job-{100_000_000 + os.getpid()}"


def leftovers(node: Path) -> list[Path]:
    """The token and Ray's folder, as far as they are still there."""
    number = the_run(node).name.removeprefix("job-")
    return [*(node / "runs").glob(".token-*"), *Path("/tmp").glob(f"fedtune-{number}-*")]


@pytest.mark.long
def test_a_slurm_job_ends_in_time_asks_to_be_begun_again_and_goes_on_where_it_was(node: Path) -> None:
    """Slurm tells it of its coming end once it has results, and puts it back into the queue."""
    process, run = job(node, restarts=0), the_run(node)
    try:
        token = wait_for(lambda: next((t for t in (node / "runs").glob(".token-*") if t.stat().st_size == 64), None))
        assert token.stat().st_mode & 0o777 == 0o600
        secret = token.read_text()
        wait_for(lambda: process.poll() is not None or (run.exists() and logs.logged(run)), seconds=300)
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    said = (node / "0.log").read_text()
    assert status == 130 and secret not in said, said
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert len(pd.read_parquet(run / "rounds.parquet")) < 32
    requeued = f"requeue {run.name.removeprefix('job-')}\n"
    assert (node / "scontrol.log").read_text() == requeued and not leftovers(node)

    assert job(node, restarts=1).wait(timeout=300) == 0, (node / "1.log").read_text()
    assert json.loads((run / "run.json").read_text())["state"] == "finished"
    rounds = pd.read_parquet(run / "rounds.parquet")
    assert rounds.groupby("trial")["round"].apply(list).tolist() == [list(range(1, 9))] * 4
    assert (node / "scontrol.log").read_text() == requeued and not leftovers(node)  # nothing more to do


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("nothing found", 1)])
def test_a_search_that_is_over_is_not_begun_again(tmp_path: Path, state: str, status: int) -> None:
    record = {"format": FORMAT, "options": {}, "scenario": {}, "defaults": {}, "state": state}
    (tmp_path / "run.json").write_text(json.dumps(record))
    ended = begun(tmp_path, ".", "--algo", "none", really=True)
    assert ended.returncode == status and state in ended.stdout + ended.stderr
