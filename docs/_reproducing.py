"""Write what the paper's experiments cost into docs/reproducing-the-paper.md: `python docs/_reproducing.py`.

Nothing is trained for it: the commands are parsed as the command line parses them, and what they would train
is counted.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path

from evoprune.commands._parsing import parse
from evoprune.evolution.settings import build, presets, table
from evoprune.tasks.cutting import costs
from evoprune.tasks.finding import EMBEDDED
from evoprune.tasks.recipes import Recipe
from evoprune.tasks.task import Task, named

PAGE = Path(__file__).parent / "reproducing-the-paper.md"

TRAINING = {
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257 + 531_131,
    "imagenet-1k": 1_281_167,
}
"""Training images of the named data sets."""

PASSES = 3
"""A training step costs about three forward passes: one forward, two backward."""

# what the paper shows → the command
TASKS = {
    "Section 4, LeNet-5 on MNIST (92.4 % of FLOPs, 98.0 % of parameters)": (
        "evoprune prune lenet5-mnist --retrain"
    ),
    "Section 4, VGG-16 on CIFAR-10 (63.0 %)": "evoprune prune vgg16-cifar10 --retrain",
    "SVHN table, ResNet-164 (63.2 %)": (
        "evoprune prune resnet38-cifar100 --set name=resnet164-svhn --set options.depth=164 \\\n"
        "    --set options.num_classes=10 --set data.name=svhn --set base.epochs=20 \\\n"
        "    --recipe transfer-svhn-paper --flops 0.632 --retrain"
    ),
    "CIFAR-100 table, VGG-19 (61.0 %)": (
        "evoprune prune vgg16-cifar10 --set name=vgg19-cifar100 --set network=evoprune.networks:vgg19 \\\n"
        "    --set options.num_classes=100 --set data.name=cifar100 --recipe transfer-cifar100-paper \\\n"
        "    --flops 0.61 --retrain"
    ),
    **{
        f"CIFAR-100 table, ResNet-{depth} ({share} %)": (
            f"evoprune prune resnet38-cifar100 --set name=resnet{depth}-cifar100 \\\n"
            f"    --set options.depth={depth} --recipe transfer-cifar100-paper \\\n"
            f"    --flops {share / 100:g} --retrain"
        )
        for depth, share in ((56, 56.2), (110, 56.2), (164, 63.2))
    },
    **{
        f"ImageNet table, VGG-16 ({share} %)": (
            f"evoprune prune resnet18-imagenet --set name=vgg16-imagenet \\\n"
            f"    --set network=evoprune.networks:vgg16_imagenet --weights FILE \\\n"
            f"    --recipe transfer-imagenet-vgg16-paper --flops {share / 100:g} --selection false \\\n"
            f"    --ignore classifier.0 classifier.3 --retrain"
        )
        for share in (59.0, 66.9)
    },
    **{
        f"ImageNet table, ResNet-18 ({share} %)": (
            f"evoprune prune resnet18-imagenet --weights FILE \\\n"
            f"    --recipe transfer-imagenet-resnet18-paper --flops {share / 100:g} --retrain"
        )
        for share in (16.8, 36.7, 41.0)
    },
    **{
        f"ImageNet table, MobileNetV2 ({share} %)": (
            f"evoprune prune resnet18-imagenet --set name=mobilenetv2-imagenet \\\n"
            f"    --set network=evoprune.networks:mobilenet_v2 --weights FILE \\\n"
            f"    --recipe transfer-imagenet-mobilenetv2-paper --flops {share / 100:g} --retrain"
        )
        for share in (26.9, 53.4)
    },
}


def images(task: Task) -> int:
    """How many images one epoch of a task's training sees."""
    data = task.settings.data
    if data.name in EMBEDDED:
        return len(task.data.train)
    there = TRAINING[data.name]
    there = there if data.images == "all" else min(there, data.images)
    return round(there * (1 - data.validation))


def training(task: Task, recipe: Recipe, macs: int) -> float:
    """Peta multiply-accumulates of a training of a network that costs `macs` for one image."""
    epoch = images(task)
    if recipe.steps_per_epoch:
        epoch = min(epoch, recipe.steps_per_epoch * recipe.batch_size)
    return recipe.epochs * epoch * PASSES * macs / 1e15


@cache
def of_choice(name: str, options: str) -> tuple[float, float]:
    """The same of a task that a preset chooses; presets have the same ones."""
    return of_task(named(name, **json.loads(options)))


def of_task(task: Task) -> tuple[float, float]:
    """Training the base network, and one retraining."""
    (before, _), (after, _) = costs(task.untrained(), task.example(), task.settings.cut)
    return training(task, task.settings.base, before), training(task, task.settings.recipe, after)


def number(peta: float) -> str:
    """For people."""
    return f"{peta:,.0f}" if peta >= 100 else f"{peta:.2g}"


def evolutions() -> str:
    """The presets: how many functions are judged at most, and what that costs."""
    lines = [
        "| preset | what | judged, at most | retrainings, at most | PMAC, at most |",
        "|---|---|---|---|---|",
    ]
    for name, about in presets().items():
        settings = build(table(preset=name))
        population = settings.population
        judged = population.size + (population.generations - 1) * (
            population.children + population.immigrants
        )
        peta = 0.0
        weights = settings.weights()
        for choice in settings.tasks:
            if choice.name in weights:
                base, once = of_choice(choice.name, json.dumps(choice.options))
                peta += base + judged * once
        retrainings = judged * len(weights)
        lines.append(f"| `{name}` | {about} | {judged:,} | {retrainings:,} | {number(peta)} |")
    return "\n".join(lines)


def prunings() -> str:
    """The tables: a command each."""
    lines = []
    for what, command in TASKS.items():
        _, name, *arguments = shlex.split(command.replace("\\\n", " "))
        given = parse(name, name, arguments).run.keywords
        task = given["task"].open(cut=given["cut"])
        base, once = of_task(task)
        needs = "" if task.settings.weights else f"base network {number(base)} PMAC, "
        lines += [f"**{what}**: {needs}retraining {number(once)} PMAC", "", "```", command, "```", ""]
    return "\n".join(lines[:-1])


def page() -> str:
    """The page with both in their places."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in (("evolutions", evolutions()), ("prunings", prunings())):
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, part=part: f"{found[1]}{part}\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
