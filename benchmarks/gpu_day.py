"""Steps of benchmarks/gpu_day.sh that are no program of their own.

python -m benchmarks.gpu_day machine                      what there is, and what is missing
python -m benchmarks.gpu_day memory --device cuda         what a round takes of the GPU, and the share of a trial
python -m benchmarks.gpu_day twice --device cuda          whether one run gives the same bits twice
python -m benchmarks.gpu_day compare CPU.jsonl GPU.jsonl  differences of the rows of two runs
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

NEEDED = ("torch", "numpy", "filelock", "typing_extensions", "rich")  # of `fedtune run`
WANTED = {"torchvision": "Fashion-MNIST", "pytest": "test_cuda.py", "sklearn": "digits"}
CLOCK = ("seconds", "eval_seconds")
CLOSE = 0.02  # of accuracies after many rounds in float32, whose last bits are others on a GPU

MEMORY = [
    ("fedavg", "digits-w4"),
    ("gfpl", "gfpl-fmnist-w4"),
    ("fedpa", "fedpa-fmnist-a0.3"),
    ("fml", "gfpl-fmnist-few"),
]


def machine() -> int:
    """What there is; 1 where something is missing, with the wheels that would bring it."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}")
    missing = []
    for name in (*NEEDED, *WANTED):
        if importlib.util.find_spec(name):
            print(f"{name} {metadata.version('scikit-learn' if name == 'sklearn' else name)}")
        else:
            print(f"{name} is missing, which {WANTED.get(name, 'fedtune run')} needs: give its wheel in WHEELS")
            missing.append(name)
    print("ray is there" if importlib.util.find_spec("ray") else "no Ray: nothing here needs it")
    raw = Path(os.environ["FEDTUNE_DATA_DIR"], "FashionMNIST", "raw")
    if len([*raw.glob("*-ubyte")]) < 4:
        print("Fashion-MNIST is missing: give its four files, gzipped or not, in FEDTUNE_DATA_DIR")
        missing.append("Fashion-MNIST")
    if "torch" not in missing:
        import torch

        rounding = (
            f"TF32: convolutions {torch.backends.cudnn.allow_tf32}, products {torch.backends.cuda.matmul.allow_tf32}"
        )
        print(f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs, {rounding}")
        if torch.cuda.is_available():
            print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.strip())
    return 1 if missing else 0


def memory(device: str) -> int:
    """Time and memory of a round in some settings, and the share of the GPU that a trial of each would get."""
    if device == "cpu":
        print("a round is measured on a GPU only")
        return 0
    from fedtune.cluster import gpu_share
    from fedtune.experiment import partitioning, scenarios
    from fedtune.experiment.experiment import Experiment

    for name, where in MEMORY:
        scenario = scenarios.find(where)
        data = [partitioning.make(scenario, 0)]
        experiment = Experiment(algorithm=name, scenario=scenario, device=device)
        gpu_share.measure(experiment, data)  # what is made once
        cost = gpu_share.measure(experiment, data)
        share = gpu_share.share(cost.peak, cost.total, 1000)
        print(
            f"{name:8} {where:18} {cost.seconds:6.2f} s {cost.peak / 1e9:6.2f} GB of {cost.total / 1e9:.0f} GB, "
            f"{int(1 / share)} trials fit",
            flush=True,
        )
    return 0


def twice(device: str) -> int:
    """Whether the same run gives the same bits twice, as `fedtune replay` expects."""
    from fedtune.engine import simulation
    from fedtune.experiment import partitioning, registry, scenarios
    from fedtune.experiment.experiment import Experiment

    digits, different = scenarios.find("digits-w4").override(rounds=5), 0
    images = scenarios.find("gfpl-fmnist-few").override(rounds=2, local_epochs=1)
    nets = ("resnet8-bn", "resnet8-gn", "vit", "mcmahan-cnn")
    cases = [(net, "fedavg", images.override(model=net)) for net in nets]
    cases += [(name, name, digits) for name in registry.names()]
    for label, name, scenario in cases:
        data = partitioning.make(scenario, 0)
        for executor in ("stack", "loop") if name in ("fedavg", "fedproto", "fedpa") else ("stack",):
            experiment = Experiment(algorithm=name, scenario=scenario, device=device, executor=executor)
            one, other = ([*simulation.train(experiment, {}, data)] for _ in range(2))
            differ = sorted({n for a, b in zip(one, other, strict=True) for n in a if n not in CLOCK and a[n] != b[n]})
            print(
                f"{label:11} {executor:6} {'other bits in ' + ', '.join(differ) if differ else 'the same bits'}",
                flush=True,
            )
            different += bool(differ)
    return 1 if different else 0


def compare(cpu: Path, gpu: Path) -> int:
    """Print how much the rows of two runs differ; 1 if final accuracies are not close."""
    cpu_rows, gpu_rows = ([json.loads(line) for line in file.read_text().splitlines()] for file in (cpu, gpu))
    if len(cpu_rows) != len(gpu_rows):
        print(f"{len(cpu_rows)} rounds on the CPU, {len(gpu_rows)} on the GPU")
        return 1
    print(f"after {len(cpu_rows)} rounds {'CPU':>12} {'GPU':>12} {'round 1':>9} {'largest':>9}")
    for name, value in cpu_rows[-1].items():
        if name in CLOCK or not isinstance(value, float):
            continue
        pairs = [(a[name], b[name]) for a, b in zip(cpu_rows, gpu_rows, strict=True) if a.get(name) is not None]
        differences = [abs(a - b) for a, b in pairs]
        print(f"{name:22} {value:12.6f} {gpu_rows[-1][name]:12.6f} {differences[0]:9.1e} {max(differences):9.1e}")
    for name in CLOCK:
        total = [sum(row[name] for row in rows) for rows in (cpu_rows, gpu_rows)]
        print(f"{name:22} {total[0]:12.1f} {total[1]:12.1f}")
    same = all(abs(cpu_rows[-1][n] - gpu_rows[-1][n]) <= CLOSE for n in ("val_acc", "test_acc"))
    print(f"final accuracies are {'' if same else 'NOT '}within {CLOSE}")
    return 0 if same else 1


def main() -> int:
    """Run the requested step."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("machine", "memory", "twice", "compare"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.step == "compare":
        return compare(*args.files)
    return machine() if args.step == "machine" else {"memory": memory, "twice": twice}[args.step](args.device)


if __name__ == "__main__":
    sys.exit(main())
