"""`evoprune prune`: the whole chain on one task, and the paper's table row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from evoprune.commands._options import CutOptions, Which
from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.errors import ConfigError


def main(
    task: Which,
    cut: CutOptions,
    function: Annotated[str, tyro.conf.arg(metavar="FUNCTION")] = "xi_star",
    retrain: Flag = False,
    seed: int = 0,
    on: Literal["test", "validation"] = "test",
    output: Annotated[Path | None, plain("FOLDER")] = None,
    json: Flag = False,
) -> None:
    """Score the channels of a task's network, cut it, retrain it, and print the paper's table row.

    The base network is trained first where it is not there yet.

    Args:
        function: A name of the library, a text of your own in quotes, or tp_… of Torch-Pruning.
        retrain: Retrain the pruned network by the task's recipe.
        seed: Of the retraining, and of a function that draws.
        on: The images that judge: test for a final result, validation while you still choose.
        output: Save the pruned network in this folder, without pickle.
        json: Print the result as JSON: kept channels by site, accuracies, costs.

    Examples:
        evoprune prune digits --function xi_star --flops 0.5 --retrain
        evoprune prune shapes --function "sqrt(var_g(F+))" --ratio 0.4 --output smaller
        evoprune prune lenet5-mnist --function tp_taylor --retrain --threads 1
        evoprune prune --model my_package.my_module:factory --weights base.safetensors \\
            --data cifar10 --flops 0.5
    """
    from evoprune.tasks.importances import check_method
    from evoprune.tasks.progress import TrainingProgress
    from evoprune.tasks.results import paper_row

    check_method(function)
    if seed < 0:
        raise ConfigError(f"--seed must be 0 or more, got {seed}")
    chosen = task.open(cut=cut)
    chosen.check()
    with TrainingProgress(f"{chosen.name}: base") as progress:
        chosen.base(progress)
    kept = chosen.kept(function, seed=seed)
    with TrainingProgress(f"{chosen.name}: {function}") as progress:
        result, network = chosen.retrained(kept, seed, on=on, watcher=progress, retrain=retrain)
    if output is not None:
        made = {"function": function, "seed": seed, "retrained": retrain}
        chosen.pruned(network, kept, made).save(output)
    if json:
        facts = {"task": chosen.name, "function": function, "retrained": retrain, **result.table()}
        facts |= {"kept": kept.channels, "constant": kept.constant, "sampled": kept.sampled}
        print_json(facts | {"output": output})
        return
    print(f"{chosen.name}: {len(kept.channels)} sites, kept channels")
    for site in chosen.surgeon.sites:
        print(f"  {site.name}: {len(kept.channels[site.name])} of {site.channels}")
    if kept.constant:
        print(f"cut by index, as the function scores all channels alike: {', '.join(kept.constant)}")
    if kept.sampled:
        print("the function was evaluated on a sample of the scoring images")
    print()
    top5 = len(chosen.data.classes) >= 100
    print(paper_row(chosen.settings.network_name, function, result, top5=top5, retrained=retrain))
    print()
    print(f"right after the cut: {result.accuracy_cut:.2%} of {result.images:,} {on} images")
    if retrain:
        print(f"after retraining ({chosen.settings.recipe.described()}, seed {seed}): {result.accuracy:.2%}")
    if output is not None:
        print(f"saved to {output}; evoprune.load_pruned reads it")
