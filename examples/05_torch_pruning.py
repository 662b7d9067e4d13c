"""Torch-Pruning with an evolved importance, and its importances on our surgery.

python examples/05_torch_pruning.py
"""

import copy

import torch
import torch_pruning as tp

import evoprune
from evoprune.integrations.torch_pruning import FunctionImportance, customized_pruners
from evoprune.networks import resnet20

torch.manual_seed(0)
network = resnet20(num_classes=10).eval()
images, labels = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
x = images[:1]
macs = evoprune.cost(network, x).macs

# A function of ours, from the library or evolved, as an importance inside their pruner.
theirs = copy.deepcopy(network)
pruner = tp.pruner.BasePruner(
    theirs,
    x,
    importance=FunctionImportance("xi_star", (images, labels)),
    pruning_ratio=0.3,
    ignored_layers=[theirs.linear],
    customized_pruners=customized_pruners(),  # for the ChannelSelect in its shortcuts
    in_channel_groups={},  # its defaults are shared between pruners
    out_channel_groups={},
)
pruner.step()
print(f"Torch-Pruning by xi_star:   {evoprune.cost(theirs, x).macs / macs:.1%} of FLOPs left")

# Their importances and ours cut alike here, to the same shapes, and every cut is checked.
for importance in (tp.importance.GroupMagnitudeImportance(p=2), "l2", "xi_star"):
    name = importance if isinstance(importance, str) else type(importance).__name__
    pruned = evoprune.prune(network, importance, (images, labels), flops=0.5, selection=True)
    kept = pruned.kept["layer1.0.conv1"]
    print(f"evoprune by {name}: {pruned.after.macs / macs:.1%} of FLOPs left, layer1.0.conv1 keeps {kept}")
