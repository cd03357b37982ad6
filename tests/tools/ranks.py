"""Workers of `workbench.capture` for tests: python ranks.py FOLDER LAUNCHER N ARGUMENT ...

Each is forked, so that torch is imported once, with the environment that a launcher ("torchrun" or
"slurm") gives; what it prints is in FOLDER/<rank>.err, the pids in FOLDER/pids.json from the start
and the exit codes in FOLDER/codes.json at the end.
"""

import json
import multiprocessing
import os
import socket
import sys
import traceback
from pathlib import Path

from workbench.capture.command import main


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def environment(launcher, rank, n, port):
    if launcher == "slurm":
        names = {"PROCID": rank, "NTASKS": n, "LOCALID": rank, "JOB_ID": 7, "NTASKS_PER_NODE": n}
        job = {f"SLURM_{name}": str(value) for name, value in names.items()}
        # A free port, because a test must not meet another program's.
        return job | {"SLURM_JOB_NODELIST": "localhost,gpu[03-05]", "MASTER_PORT": port}
    names = {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": n}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()} | address


def run(folder, variables, rank, arguments):
    with (folder / f"{rank}.err").open("w") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    os.environ.update(variables)
    try:
        main(arguments)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    folder, launcher, n = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    port, fork = free_port(), multiprocessing.get_context("fork")
    variables = [environment(launcher, rank, n, port) for rank in range(n)]
    ranks = [
        fork.Process(target=run, args=(folder, variables[r], r, sys.argv[4:])) for r in range(n)
    ]
    for each in ranks:
        each.start()
    (folder / "pids.json").write_text(json.dumps([each.pid for each in ranks]))
    for each in ranks:
        each.join(900)
        if each.exitcode is None:
            each.kill()
            each.join()
    (folder / "codes.json").write_text(json.dumps([each.exitcode for each in ranks]))
