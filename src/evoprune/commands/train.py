"""`evoprune train`: train the base network of a task and keep it."""

from __future__ import annotations

from dataclasses import asdict

from evoprune.commands._options import Which
from evoprune.commands._parsing import Flag, print_json


def main(task: Which, json: Flag = False) -> None:
    """Train the base network of a task, or your own, and keep it for the other commands.

    A training that was stopped goes on where it was; one that is done is read back. The network is judged
    on the validation split, and on the test images. Weights that are given are judged and not trained on.

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
        base = chosen.base(progress)
    parameters = sum(parameter.numel() for parameter in base.network.parameters())
    judged = {"test": chosen.base_on_test}
    if base.validation is not None:
        judged = {"validation": base.validation, **judged}
    if json:
        facts = {"task": chosen.name, "network": settings.network_name, "parameters": parameters}
        judgements = {on: asdict(result) for on, result in judged.items()}
        made = {"images": len(chosen.data.train), "folder": chosen.base_folder}
        print_json(facts | judgements | (made if settings.weights is None else {"weights": settings.weights}))
        return
    print(f"{chosen.name}: {settings.network_name}, {parameters:,} parameters, on {settings.data.name}")
    if settings.weights is None:
        recipe, images = settings.base.described(), len(chosen.data.train)
        print(f"trained: {recipe}, seed {settings.base_seed}, {images:,} images")
    else:
        seen = "" if settings.weights_held_out else "; they have seen the validation images"
        print(f"nothing to train: the weights are those of {settings.weights}{seen}")
    for on, result in judged.items():
        top5 = f", top-5 {result.top5:.2%}" if len(chosen.data.classes) >= 100 else ""
        print(f"{on}: {result.top1:.2%}{top5} of {result.images:,} images")
    if settings.weights is None:
        print(f"kept in {chosen.base_folder}")
