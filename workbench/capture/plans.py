"""Plans of messages by name: in a file, from a policy, as torch's own reducer holds them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from ..base.checks import shown
from ..base.units import MIB
from ..fusion import FixedBuffer, OneMessage, PerTensor, Plan, Timed, check_gradients, fuse
from .folder import written
from .hooks import sizes

Messages = list[list[str]]  # names of gradients, a list a message, in the order they are sent


def write_plan(path: str | Path, plan, gradients: pd.DataFrame) -> Path:
    """Write which gradients travel in which message, for `--policy plan:FILE`.

    plan : what optimal_fusion returns, or any policy; gradients : the GRADIENTS it was made for,
    named as the model names them. JSON: {"messages": [[name, ...], ...]}, in the order of sending.
    """
    return write_messages(path, grouped(plan, gradients))


def write_messages(path: str | Path, messages: Messages) -> Path:
    """Write messages of named gradients as a plan."""
    lines = ",\n ".join(json.dumps(message) for message in messages)
    return written(path, f'{{"messages": [\n {lines}\n]}}\n')


def read_plan(path: str | Path) -> tuple[Plan, list[str]]:
    """Return the Plan in a file, and the names of its gradients in the order it takes them.

    Raises ValueError for a file that is no plan, or names a gradient twice; OSError for none.
    """
    expected = (
        f'{path}: expected JSON as write_plan writes it, {{"messages": [["name", ...], ...]}}'
    )
    try:
        messages = json.loads(Path(path).read_text(encoding="utf-8"))["messages"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(expected) from None
    named = isinstance(messages, list) and all(isinstance(m, list) and m for m in messages)
    if not (messages and named and all(isinstance(n, str) for m in messages for n in m)):
        raise ValueError(f"{expected}; each message with a name or more")
    names = [name for message in messages for name in message]
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"{path}: {shown(twice)} is there twice; expected each gradient once")
    return Plan(counts=tuple(map(len, messages))), names


def policy_of(text: str) -> tuple[object, list[str] | None]:
    """Return the policy that `--policy` names, and the order of gradients where it is given.

    per-tensor; one-message; fixed:<MiB>; plan:<file>. `ddp`, which is torch's own, gives None.
    """
    kind, _, value = text.partition(":")
    plain = {"ddp": None, "per-tensor": PerTensor(), "one-message": OneMessage()}
    if text in plain:
        return plain[text], None
    if kind == "plan" and value:
        try:
            return read_plan(value)
        except OSError as error:
            raise ValueError(f"policy plan: cannot be read: {error}") from None
    if kind == "fixed":
        try:
            return FixedBuffer(round(float(value) * MIB)), None
        except (ValueError, OverflowError):
            raise ValueError(f"policy fixed: expected MiB above 0, got {shown(value)}") from None
    expected = "ddp, per-tensor, one-message, fixed:<MiB> or plan:<file>"
    raise ValueError(f"policy: expected {expected}, got {shown(text)}")


def table_of(model: nn.Module, order: Sequence[str]) -> pd.DataFrame:
    """Return GRADIENTS of a model in an order of names; ready times unknown, hence all 0."""
    nbytes = sizes(model)
    return pd.DataFrame(
        {"name": list(order), "nbytes": [nbytes[name] for name in order], "ready_s": 0.0}
    )


def grouped(policy, gradients: pd.DataFrame) -> Messages:
    """Return the names in each message a policy makes of GRADIENTS.

    Raises ValueError, as fuse does, for a table or a policy that is none.
    """
    fuse(gradients, policy)
    numbers = policy(gradients)
    numbers = np.asarray(numbers.numbers if isinstance(numbers, Timed) else numbers)
    names = gradients["name"].astype(str).to_numpy()
    return [names[numbers == k].tolist() for k in range(numbers.max() + 1)]


def in_order(gradients: pd.DataFrame | Iterable[str], model: nn.Module) -> pd.DataFrame:
    """Return GRADIENTS whose rows are the model's, or raise ValueError naming what is not."""
    known = sizes(model)
    if isinstance(gradients, pd.DataFrame):
        names = check_gradients(gradients)["name"].astype(str).tolist()
    elif isinstance(gradients, Iterable) and not isinstance(gradients, str):
        names = list(gradients)
    else:
        raise ValueError(
            f"gradients: expected GRADIENTS or the names in order, got {shown(gradients)}"
        )
    strange = next((name for name in names if name not in known), None)
    missing = next((name for name in known if name not in set(names)), None)
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    for name, what in ((strange, "no gradient of"), (missing, "not in the plan, but in")):
        if name is not None:
            raise ValueError(
                f"gradients: {shown(name)} is {what} the model, which has {len(known)}. A plan "
                "holds for the model it was made for, by the names of named_parameters()"
            )
    if twice is not None:
        raise ValueError(f"gradients: {shown(twice)} is there twice")
    return gradients if isinstance(gradients, pd.DataFrame) else table_of(model, names)
