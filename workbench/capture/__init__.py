"""Record what a forecast needs on any cluster, apply its plan, measure the gain.

    python -m workbench.capture profile --model resnet50 --batch 32 --out profile
    torchrun --standalone --nproc-per-node 8 -m workbench.capture collectives --out links
    python -m workbench.capture plan --profile profile --collectives links --workers 8 --out p.json
    torchrun --standalone --nproc-per-node 8 -m workbench.capture train --model resnet50 \\
        --batch 32 --policy plan:p.json --out adaptive
    python -m workbench.capture compare --profile profile --collectives links adaptive

    profile       one worker: when each gradient is ready, the parts of an iteration, batch sizes,
                  and what DistributedDataParallel adds
    collectives   what a message costs, by size, collective and number of workers
    plan          what each policy would take, the best plan, and other frameworks' settings
    train         several workers with a fusion policy: iteration times, and one trace per rank
    compare       such runs, as measured and as predicted for the messages they sent

Each writes one folder (plan a file, compare a CSV if --out names one) with run.json next to its
tables and traces, which `load_run` and `read_measurements` read. The same command continues a run
that was cut and leaves a complete one as it is. `record`, `sweep_collectives`, `apply_plan` and
`compared` do the same inside your program.

Your model is module:function, such as --model mine:make with mine.py in this folder:

    import torch
    from workbench.capture import Workload

    def make(batch):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1))
        batches = [(torch.randn(batch, 64), torch.randn(batch, 1))]  # or a DataLoader
        return Workload(model, batches, torch.nn.functional.mse_loss)

Measure on machines that do nothing else, one run after another, and more than once: a change of
the machine between two runs looks like a gain.

The backend is nccl if torch sees a GPU and gloo otherwise; --backend chooses, also mpi if torch is
built with it. gloo has two threads, so two of its messages may be sent at once, which forecasts
ignore; NCCL sends one after another. If a worker is silent for --timeout s, one of the others names
it, all end, and the files written so far stay.

Several nodes, with torchrun on each (node 0 has the address):

    torchrun --nnodes 2 --node-rank $NODE --nproc-per-node 8 --master-addr $NODE_0 \\
        --master-port 29500 -m workbench.capture train --model bert-base --out shared/ddp

With SLURM, whose variables are read if torchrun's are not set:

    #!/bin/bash
    #SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --time=00:30:00
    run="srun python -m workbench.capture"
    srun --nodes 1 --ntasks 1 python -m workbench.capture profile --model bert-base --out profile
    $run collectives --ops all_reduce,reduce_scatter,all_gather --workers 2,8,16,32 --out links
    python -m workbench.capture plan --profile profile --collectives links --workers 32 --out p.json
    for policy in ddp fixed:64 plan:p.json; do
        $run train --model bert-base --policy $policy --out ${policy%%[:.]*}
    done
    python -m workbench.capture compare --profile profile --collectives links ddp fixed plan

Folders are on a disk that all nodes share, or on each node's own disk; then collect their files in
one folder. GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses among several networks.
"""

from .apply import apply_plan, messages_of
from .batches import sweep_batches
from .collectives import sweep_collectives
from .comparing import compared
from .forecast import forecasts, recorded_scenario
from .plans import read_plan, write_plan
from .recording import record
from .workloads import Workload, workload
from .wrapping import time_wrapper

__all__ = [
    "Workload",
    "apply_plan",
    "compared",
    "forecasts",
    "messages_of",
    "read_plan",
    "record",
    "recorded_scenario",
    "sweep_batches",
    "sweep_collectives",
    "time_wrapper",
    "workload",
    "write_plan",
]
