"""`evoprune train`: train the base network of a task and keep it."""

from __future__ import annotations

from evoprune.commands._options import Which


def main(which: Which) -> None:
    """Train the base network of a task, or your own, and keep it for the other commands.

    A training that was stopped goes on where it was; one that is done is read back. The network is judged
    on the validation split, and on the test images.
    """
    from evoprune.tasks.progress import TrainingProgress

    task = which.open(recipe_of="base")
    chosen = task.settings
    with TrainingProgress(f"{task.name}: base") as progress:
        network = task.base(progress).network
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{task.name}: {chosen.network_name}, {parameters:,} parameters, on {chosen.data.name}")
    print(f"trained: {chosen.base.described()}, seed {chosen.base_seed}, {len(task.data.train):,} images")
    for on in ("validation", "test"):
        result = task.judge(network, on)
        top5 = f", top-5 {result.top5:.2%}" if len(task.data.classes) >= 100 else ""
        print(f"{on}: {result.top1:.2%}{top5} of {result.images:,} images")
    print(f"kept in {task.base_folder}")
