"""Record what a forecast needs on any cluster, apply a plan, measure what it gains.

    python -m workbench.capture profile --model resnet50 --batch 32 --out profile
    torchrun --standalone --nproc-per-node 2 -m workbench.capture collectives --out links
    torchrun --standalone --nproc-per-node 2 -m workbench.capture train --model resnet50 \\
        --policy plan:plan.json --out adaptive

profile      one worker: when each gradient is ready, the parts of an iteration, batch sizes
collectives  what a message costs, by size, collective and number of workers
train        several workers with a fusion policy: iteration times, and a trace a rank

"""

from .apply import apply_plan, messages_of
from .batches import sweep_batches
from .collectives import sweep_collectives
from .convolutional import VGG16, ResNet50
from .plans import read_plan, write_plan
from .recording import record
from .recurrent import LSTM
from .transformers import BERT, GPT2, Transformer
from .workloads import Workload, workload

__all__ = [
    "BERT",
    "GPT2",
    "LSTM",
    "VGG16",
    "ResNet50",
    "Transformer",
    "Workload",
    "apply_plan",
    "messages_of",
    "read_plan",
    "record",
    "sweep_batches",
    "sweep_collectives",
    "workload",
    "write_plan",
]
