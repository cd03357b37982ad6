"""Which ranks an export of Nsight Systems holds, told by NCCL, by the launcher, or by the devices.

A lane is one device as one process sees it.
"""

import re

import pandas as pd

# Of the process that nsys started: its rank and how many there are, the surest first.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", ""),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_NUMBER = re.compile(r"\d{1,7}")


def launcher(db, tables: dict[str, set]) -> dict:
    """`environment` and `options` of the process that nsys started, and the `host`, as recorded."""
    environment, arguments, host = {}, {}, ""
    if {"name", "value"} <= tables.get("META_DATA_CAPTURE", set()):
        query = "SELECT name, value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_0:%'"
        for name, value in db.execute(query):
            if name == "PROCESS_0:ENVIRONMENT_VARIABLE":
                key, _, value = str(value).partition("=")
                environment[key] = value.strip('"')
            elif found := re.fullmatch(r"PROCESS_0:ARGUMENT_(\d{1,6})", str(name)):
                arguments[int(found[1])] = str(value)
    if {"name", "value"} <= tables.get("TARGET_INFO_SYSTEM_ENV", set()):
        query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
        host = str((db.execute(query).fetchone() or [""])[0])
    words = " ".join(arguments[n] for n in sorted(arguments))
    options = re.findall(r"--(node[-_]rank|nproc[-_]per[-_]node|nnodes)[= ](\d{1,7})(?!\S)", words)
    options = {name.replace("-", "_"): int(value) for name, value in options}
    return {"environment": environment, "options": options, "host": host}


def ranks_of(table: pd.DataFrame, by_nccl: dict, said: dict) -> tuple[pd.Series, int | None, str]:
    """Rank of each device row, the number of ranks, and where they come from; NA when not told.

    by_nccl : (process, device) -> rank and number of ranks
    said : of `launcher`
    """
    work = table[table["stream"] >= 0]
    talkers = work.loc[work["kind"] == "comm", ["process", "device"]].drop_duplicates()
    talkers = list(talkers.itertuples(index=False, name=None))
    told = [by_nccl.get(lane) for lane in talkers]
    if told and None not in told and len({rank for rank, _ in told}) == len(told):
        numbers = {lane: rank for lane, (rank, _) in zip(talkers, told, strict=True)}
        lanes = pd.MultiIndex.from_frame(work[["process", "device"]])
        rank = pd.Series(lanes.map(numbers), index=work.index, dtype="Int64")
        return rank, max(n for _, n in told), "rank as NCCL's ranges tell"
    rank, why = _by_devices(work, {process for process, _ in talkers})
    return _by_launcher(rank, why, said)


def _by_devices(work: pd.DataFrame, talkers: set) -> tuple[pd.Series, str]:
    devices = sorted(work["device"].unique())
    if len(devices) > 1:
        rank = work["device"].where(work["device"].between(0, 2**31 - 1))  # else it is damaged
        why = f"{len(devices)} devices in one export: rank is the number of the device"
        return rank.astype("Int64"), why
    if len(talkers) > 1:
        number = {process: i for i, process in enumerate(sorted(talkers))}
        why = f"{len(talkers)} processes use one device number: rank is the order of the process"
        return work["process"].map(number).astype("Int64"), why
    return pd.Series(pd.NA, index=work.index, dtype="Int64"), ""


def _by_launcher(rank: pd.Series, why: str, said: dict) -> tuple[pd.Series, int | None, str]:
    """The rank of the only lane from the environment; of several, counted on from torchrun's."""
    options, environment = said["options"], said["environment"]
    if why:
        each, nodes = options.get("nproc_per_node"), options.get("nnodes", 1)
        node = options.get("node_rank", 0 if nodes == 1 else None)
        if each is None or node is None or node >= nodes or not (rank.dropna() < each).all():
            return rank, None, why
        count = f", counted from {node * each} as node {node} of {nodes}" if nodes > 1 else ""
        return rank + node * each, nodes * each, why + count
    for name, size in _VARIABLES:
        if _NUMBER.fullmatch(mine := environment.get(name, "")):
            n = environment.get(size, "")
            n_ranks = int(n) if _NUMBER.fullmatch(n) and int(n) > int(mine) else None
            return rank.fillna(int(mine)), n_ranks, f"rank from the launcher's {name}"
    return rank, None, why
