"""`evoprune train`: train the base network of a task and keep it."""

from __future__ import annotations

from dataclasses import asdict

from evoprune.commands._options import Which
from evoprune.commands._parsing import Flag, print_json


def main(task: Which, json: Flag = False) -> None:
    """Train the base network of a task, or your own, and keep it for the other commands.

    A training that was stopped goes on where it was; one that is done is read back. The network is judged
    on the validation split, and on the test images.

    Args:
        json: Print the result as JSON.

    Examples:
        evoprune train digits
        evoprune train lenet5-mnist --threads 1
        evoprune train resnet20-cifar10 --set base.epochs=5 --set data.images=10000
        evoprune train --model my_package.my_module:factory --data cifar10
    """
    from evoprune.tasks.progress import TrainingProgress

    chosen = task.open(recipe_of="base")
    settings = chosen.settings
    with TrainingProgress(f"{chosen.name}: base") as progress:
        network = chosen.base(progress).network
    parameters = sum(parameter.numel() for parameter in network.parameters())
    judged = {on: chosen.judge(network, on) for on in ("validation", "test")}
    if json:
        facts = {"task": chosen.name, "network": settings.network_name, "parameters": parameters}
        judgements = {on: asdict(result) for on, result in judged.items()}
        print_json(facts | judgements | {"images": len(chosen.data.train), "folder": chosen.base_folder})
        return
    print(f"{chosen.name}: {settings.network_name}, {parameters:,} parameters, on {settings.data.name}")
    print(
        f"trained: {settings.base.described()}, seed {settings.base_seed}, {len(chosen.data.train):,} images"
    )
    for on, result in judged.items():
        top5 = f", top-5 {result.top5:.2%}" if len(chosen.data.classes) >= 100 else ""
        print(f"{on}: {result.top1:.2%}{top5} of {result.images:,} images")
    print(f"kept in {chosen.base_folder}")
