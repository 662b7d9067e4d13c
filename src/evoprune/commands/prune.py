"""`evoprune prune`: the whole chain on one task, and the paper's table row."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from evoprune.commands._options import CutOptions, Which


def main(
    which: Which,
    how: CutOptions,
    function: str = "xi_star",
    retrain: bool = False,
    seed: int = 0,
    on: Literal["test", "validation"] = "test",
    output: Path | None = None,
) -> None:
    """Score the channels of a task's network, cut it, retrain it, and print the paper's table row.

    The base network is trained first where it is not there yet.

    Args:
        function: A name of the library, a text of your own in quotes, or tp_… of Torch-Pruning.
        retrain: Retrain the pruned network by the task's recipe.
        seed: Of the retraining, and of a function that draws.
        on: The images that judge: test for a final result, validation while you still choose.
        output: Save the pruned network in this folder, without pickle.
    """
    from evoprune.tasks.importances import check_method
    from evoprune.tasks.progress import TrainingProgress
    from evoprune.tasks.results import paper_row

    check_method(function)
    task = which.open(cut=how)
    task.check()
    with TrainingProgress(f"{task.name}: base") as progress:
        task.base(progress)
    kept = task.kept(function, seed=seed)
    with TrainingProgress(f"{task.name}: {function}") as progress:
        result, network = task.retrained(kept, seed, on=on, watcher=progress, retrain=retrain)
    print(f"{task.name}: {len(kept.channels)} sites, kept channels")
    for site in task.surgeon.sites:
        print(f"  {site.name}: {len(kept.channels[site.name])} of {site.channels}")
    if kept.constant:
        print(f"cut by index, as the function scores all channels alike: {', '.join(kept.constant)}")
    if kept.sampled:
        print("the function was evaluated on a sample of the scoring images")
    print()
    top5 = len(task.data.classes) >= 100
    print(paper_row(task.settings.network_name, function, result, top5=top5, retrained=retrain))
    print()
    print(f"right after the cut: {result.accuracy_cut:.2%} of {result.images:,} {on} images")
    if retrain:
        print(f"after retraining ({task.settings.recipe.described()}, seed {seed}): {result.accuracy:.2%}")
    if output is not None:
        made = {"function": function, "seed": seed, "retrained": retrain}
        task.pruned(network, kept, made).save(output)
        print(f"saved to {output}; evoprune.load_pruned reads it")
