"""Record what a forecast needs on any cluster, apply the plan it gives, measure what that gains.

    python -m workbench.capture profile --model resnet50 --batch 32 --out profile
    torchrun --standalone --nproc-per-node 8 -m workbench.capture collectives --out links
    python -m workbench.capture plan --profile profile --collectives links --workers 8 --out p.json
    torchrun --standalone --nproc-per-node 8 -m workbench.capture train --model resnet50 \\
        --batch 32 --policy plan:p.json --out adaptive
    python -m workbench.capture compare --profile profile --collectives links adaptive

    profile       one worker: when each gradient is ready, the parts of an iteration, batch sizes,
                  and what DistributedDataParallel adds by itself
    collectives   what a message costs, by size, collective and number of workers
    plan          what every policy would take, the best plan, and other frameworks' settings
    train         several workers with a fusion policy: iteration times, and a trace a rank
    compare       such runs, as measured and as predicted of the messages they sent

Each writes one folder (plan a file, compare a CSV if --out names one) with run.json beside its
tables and traces, which `load_run` and `read_measurements` read. The same command again goes on
where a run ended; one that is complete is left as it is. `record`, `sweep_collectives`,
`apply_plan` and `compared` do the same inside a program of yours.

A model of your own is module:function, such as --model mine:make with mine.py in this folder:

    import torch
    from workbench.capture import Workload

    def make(batch):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1))
        batches = [(torch.randn(batch, 64), torch.randn(batch, 1))]  # or a DataLoader
        return Workload(model, batches, torch.nn.functional.mse_loss)

Measure on machines that do nothing else, one run after another, and more than once: what changes
between two runs looks like a gain.

The backend is nccl where torch sees a GPU and gloo otherwise; --backend chooses, mpi too where
torch is built with it. gloo has two threads, so that two of its messages may be under way at once,
of which forecasts know nothing; NCCL sends one after another. When a worker gives no sign for
--timeout s, one of the others names it, all end, and what they have written stays.

Several nodes, with torchrun on each (node 0 has the address):

    torchrun --nnodes 2 --node-rank $NODE --nproc-per-node 8 --master-addr $NODE_0 \\
        --master-port 29500 -m workbench.capture train --model bert-base --out shared/ddp

With SLURM, whose variables are read where torchrun's are not set:

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

Folders lie on a disk that all nodes share, or on one of each node's own, whose files then belong
together. GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the network where there are several.
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
