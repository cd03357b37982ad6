"""What recording costs a training iteration: hooks on every gradient and none, in one run.

Iterations with hooks and without take turns, so that both meet the same machine. The share is the
median difference of the pairs over the median iteration without hooks, its interval from pairs
drawn again; the time that all hooks of an iteration take alone is shown next to it. Without a GPU
times are those of the process on its core, for others may share the machine.
"""

import argparse
import os
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch

from workbench.capture import workload
from workbench.capture.hooks import ready_marks, trained
from workbench.capture.training import Training
from workbench.capture.workers import Workers

LIMIT = 0.02  # of an iteration, required


def in_turns(training: Training, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return s of iterations without hooks and with, in turns, which of the two first by lot."""
    rng = np.random.default_rng(20220425)
    now = time.perf_counter if training.clock.device.type == "cuda" else time.process_time
    seconds = {False: [], True: []}
    for first in rng.random(pairs) < 0.5:
        for hooked in (first, not first):
            with ready_marks(training.bare, training.clock) if hooked else nullcontext() as marks:
                began = now()
                training.iterate(marks)
                seconds[hooked].append(now() - began)
    return np.array(seconds[False]), np.array(seconds[True])


def shares(plain: np.ndarray, hooked: np.ndarray) -> tuple[float, float, float]:
    """Return the share that hooks add, and the ends of its 95 % interval, pairs drawn again."""
    drawn = np.random.default_rng(1).integers(len(plain), size=(2000, len(plain)))
    differences = np.median((hooked - plain)[drawn], axis=1) / np.median(plain)
    return np.median(hooked - plain) / np.median(plain), *np.quantile(differences, [0.025, 0.975])


def of_hooks_alone(training: Training) -> float:
    """Return the s that all hooks of an iteration take when nothing else happens."""
    with ready_marks(training.bare, training.clock):
        parameters = list(trained(training.bare).values())
        hooks = [next(iter(p._post_accumulate_grad_hooks.values())) for p in parameters]
        began = time.perf_counter()
        for _ in range(100):
            for hook, parameter in zip(hooks, parameters, strict=True):
                hook(parameter)
        return (time.perf_counter() - began) / 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--models", default="resnet50,transformer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = {"resnet50": 64, "transformer": 64} if device.type == "cpu" else {}
    missed = 0
    print(f"{options.pairs} pairs, load average {os.getloadavg()[0]:.1f}")
    print("model           plain   added by hooks (95 %)            hooks by themselves")
    for name in options.models.split(","):
        training = Training(workload(name, 1, size=sizes.get(name)), Workers(device=device))
        for _ in range(5):
            training.iterate()
        plain, hooked = in_turns(training, options.pairs)
        share, low, high = shares(plain, hooked)
        alone = of_hooks_alone(training) / np.median(plain)
        missed += share >= LIMIT
        print(
            f"{name:12} {np.median(plain) * 1e3:6.1f} ms   {share:+.2%} ({low:+.2%} to {high:+.2%})"
            f"   {alone:.3%}",
            flush=True,
        )
    print("missed" if missed else f"all under {LIMIT:.0%}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
