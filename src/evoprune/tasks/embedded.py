"""The two data sets that need no download: `digits`, shipped in the package, and `shapes`, drawn here."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

SHAPES = ("disc", "square", "triangle", "star", "cross", "ring", "crescent", "heart", "arrow", "wave")
SIDE = 32
TRAIN, TEST = 6000, 2000


def digits() -> tuple[Bytes, Bytes]:
    """The 1,797 handwritten digits of scikit-learn: images `[image, 1, 8, 8]` and labels `[image]`."""
    with (files("evoprune.tasks") / "assets" / "digits.npz").open("rb") as file, np.load(file) as content:
        # The grey levels are counts from 0 to 16; 15 makes them span a byte.
        return content["images"][:, None] * np.uint8(15), content["labels"]


def shapes(count: int, *, seed: int) -> tuple[Bytes, Bytes]:
    """Drawn shapes: images `[image, 3, 32, 32]` and labels `[image]`, every class equally often.

    Each image has one of ten shapes, turned, scaled, moved and stretched, over a two-colour gradient with
    a distracting bar, in a colour that may come close to the background's, under noise. The same seed gives
    the same images anywhere.
    """
    random = np.random.default_rng([seed, count])
    labels = np.arange(count) % len(SHAPES)
    images = np.empty((count, 3, SIDE, SIDE), np.uint8)
    for label in range(len(SHAPES)):
        places = np.flatnonzero(labels == label)
        images[places] = _drawn(label, len(places), random)
    order = random.permutation(count)
    return images[order], labels[order].astype(np.uint8)


def _drawn(label: int, count: int, random: np.random.Generator) -> Bytes:
    def uniform(low: float, high: float, *shape: int) -> Floats:
        return random.uniform(low, high, (count, *shape))

    grid = (np.arange(SIDE) + 0.5) / SIDE * 2 - 1
    y, x = (axis[None] for axis in np.meshgrid(grid, grid, indexing="ij"))
    # Into the shape's own frame: move, turn, scale each axis a little differently.
    turn, scale, stretch = uniform(-0.6, 0.6, 1, 1), uniform(0.42, 0.75, 1, 1), uniform(0.8, 1.25, 1, 1)
    moved_x, moved_y = x - uniform(-0.35, 0.35, 1, 1), y - uniform(-0.35, 0.35, 1, 1)
    u = (np.cos(turn) * moved_x + np.sin(turn) * moved_y) / (scale * stretch)
    v = (np.cos(turn) * moved_y - np.sin(turn) * moved_x) / (scale / stretch)
    cover = np.clip(-_distance(SHAPES[label], u, v) * scale * SIDE / 2 + 0.5, 0, 1)[:, None]

    below, above = uniform(0, 1, 3, 1, 1), uniform(0, 1, 3, 1, 1)
    ramp = (uniform(-1, 1, 1, 1) * x + uniform(-1, 1, 1, 1) * y)[:, None] / 4 + 0.5
    canvas = below * (1 - ramp) + above * ramp
    # A bar of another colour across the background, beneath the shape.
    angle, offset = uniform(0, np.pi, 1, 1), uniform(-0.8, 0.8, 1, 1)
    bar = (np.abs(np.cos(angle) * x + np.sin(angle) * y - offset) < 0.12)[:, None]
    canvas = np.where(bar, uniform(0, 1, 3, 1, 1), canvas)
    # At least 0.25 away from the middle of the background in some colour, often no more.
    shift = uniform(0.25, 0.6, 3, 1, 1) * random.choice([-1, 1], (count, 3, 1, 1))
    middle = (below + above) / 2
    colour = np.where(np.abs(middle + shift - 0.5) <= 0.5, middle + shift, middle - shift)
    canvas = canvas * (1 - cover) + colour * cover
    canvas = canvas + random.normal(0, 1, canvas.shape) * uniform(0.02, 0.12, 1, 1, 1)
    return np.asarray(np.rint(np.clip(canvas, 0, 1) * 255), np.uint8)


def _distance(shape: str, u: Floats, v: Floats) -> Floats:
    """Below 0 inside the shape, above 0 outside, about the distance to its edge; y points down."""
    radius, angle = np.hypot(u, v), np.arctan2(v, u)
    if shape == "disc":
        return radius - 0.85
    if shape == "square":
        return np.maximum(np.abs(u), np.abs(v)) - 0.75
    if shape == "triangle":
        return np.maximum(np.abs(u) * 0.866 + v * 0.5, -v) - 0.5
    if shape == "star":
        return radius - (0.68 + 0.28 * np.cos(5 * (angle + np.pi / 2)))
    if shape == "cross":
        arm, reach = np.minimum(np.abs(u), np.abs(v)), np.maximum(np.abs(u), np.abs(v))
        return np.maximum(arm - 0.28, reach - 0.9)
    if shape == "ring":
        return np.abs(radius - 0.65) - 0.22
    if shape == "crescent":
        return np.maximum(radius - 0.9, 0.75 - np.hypot(u - 0.42, v))
    if shape == "heart":
        return np.hypot(u, v + 0.15 - 0.6 * np.sqrt(np.abs(u))) - 0.75
    if shape == "arrow":
        head = np.maximum((np.abs(u) - v - 0.9) * 0.75, v)
        shaft = np.maximum(np.abs(u) - 0.22, np.abs(v - 0.45) - 0.45)
        return np.minimum(head, shaft)
    return np.maximum(np.abs(v - 0.35 * np.sin(3.6 * u)) - 0.26, np.abs(u) - 0.95)  # wave
