"""Plans of messages by the names of their gradients: from a policy, in a file."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from ..base.checks import require, shown
from ..base.units import MIB
from ..fusion import FixedBuffer, OneMessage, PerTensor, Plan, Timed, check_gradients, fuse
from .folder import write_text
from .hooks import sizes

Messages = list[list[str]]  # names of gradients, one list per message, in the order of sending


def write_plan(path: str | Path, plan, gradients: pd.DataFrame) -> Path:
    """Write which gradients are sent in which message, for `--policy plan:FILE`.

    plan : what optimal_fusion returns, or any policy
    gradients : the GRADIENTS it was made for, with the model's names

    JSON: {"messages": [[name, ...], ...]}, in the order of sending.
    """
    return write_messages(path, grouped(plan, gradients))


def write_messages(path: str | Path, messages: Messages) -> Path:
    """Write messages of named gradients as a plan."""
    lines = ",\n ".join(json.dumps(message) for message in messages)
    return write_text(path, f'{{"messages": [\n {lines}\n]}}\n')


def read_plan(path: str | Path) -> tuple[Plan, list[str]]:
    """Return the Plan in a file, and the names of its gradients in the order it takes them."""
    expected = 'JSON as write_plan writes it, {"messages": [["name", ...], ...]}'
    try:
        messages = json.loads(Path(path).read_text(encoding="utf-8"))["messages"]
        names = [name for message in messages for name in message]
        lists = messages and all(isinstance(m, list) and m for m in messages)
        valid = isinstance(messages, list) and lists and all(isinstance(n, str) for n in names)
    except (ValueError, KeyError, TypeError, RecursionError):
        valid = False
    require(valid, str(path), expected, found="something else")
    _once(names, str(path))
    return Plan(counts=tuple(map(len, messages))), names


def _once(names: list, what: str) -> None:
    """Raise ValueError if a name occurs twice."""
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    require(twice is None, what, "each gradient once", found=f"{shown(twice)} twice")


def policy_of(text: str) -> tuple[object, list[str] | None]:
    """Return the policy that `--policy` names, and the order of gradients if it has one.

    per-tensor; one-message; fixed:<MiB>; plan:<file>. `ddp` is torch's own and gives None.
    """
    kind, _, value = text.partition(":")
    simple = {"ddp": None, "per-tensor": PerTensor(), "one-message": OneMessage()}
    try:
        if kind == "plan" and value:
            return read_plan(value)
        if kind == "fixed":
            return FixedBuffer(round(float(value) * MIB)), None
    except OSError as error:
        raise ValueError(f"policy plan: cannot be read: {error}") from None
    except (ValueError, OverflowError):
        require(kind != "fixed", "policy fixed", "MiB above 0", value)
        raise
    expected = "ddp, per-tensor, one-message, fixed:<MiB> or plan:<file>"
    require(text in simple, "policy", expected, text)
    return simple[text], None


def unready_gradients(model: nn.Module, order: Sequence[str]) -> pd.DataFrame:
    """Return GRADIENTS of a model in an order of names; ready times are unknown and set to 0."""
    nbytes = pd.Series(sizes(model), dtype="int64").loc[list(order)]
    return nbytes.rename_axis("name").reset_index(name="nbytes").assign(ready_s=0.0)


def grouped(policy, gradients: pd.DataFrame) -> Messages:
    """Return the names in each message that a policy makes of GRADIENTS."""
    fuse(gradients, policy)
    numbers = policy(gradients)
    numbers = np.asarray(numbers.numbers if isinstance(numbers, Timed) else numbers)
    names = gradients["name"].astype(str).to_numpy()
    return [names[numbers == k].tolist() for k in range(numbers.max() + 1)]


def in_order(gradients: pd.DataFrame | Iterable[str], model: nn.Module) -> pd.DataFrame:
    """Return GRADIENTS whose rows are the model's, or raise ValueError naming the first other."""
    known = sizes(model)
    if isinstance(gradients, pd.DataFrame):
        names = check_gradients(gradients)["name"].astype(str).tolist()
    else:
        several = isinstance(gradients, Iterable) and not isinstance(gradients, str)
        require(several, "gradients", "GRADIENTS or the names in order", gradients)
        names = list(gradients)
    expected = f"the {len(known)} gradients of the model, by the names of named_parameters()"
    for kind, others in (
        ("the unknown", [name for name in names if name not in known]),
        ("a table without", [name for name in known if name not in names]),
    ):
        require(not others, "gradients", expected, found=f"{kind} {shown((others or [0])[0])}")
    _once(names, "gradients")
    return gradients if isinstance(gradients, pd.DataFrame) else unready_gradients(model, names)
