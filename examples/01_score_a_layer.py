"""Score the channels of one layer by several functions, and see where they agree.

python examples/01_score_a_layer.py
"""

import evoprune

# A task of the package brings a network, trained here in some seconds, and its images.
task = evoprune.Task.from_spec("digits", folder="runs/tasks/digits")
network = task.base().network
images, labels = next(task.data.train.ordered(batch_size=1000))

# Any number of functions in one pass over the images: names of the library, or texts of your own.
functions = ["l1", "xi_star", "fdr", "div(var_g(F-), ridge(var_g(F+), 0.05))"]
scores = evoprune.score(network, functions, (images, labels))
print(scores)

layer = scores.sites[1]
print(f"\nthe five most important channels of the site {layer!r}, best first")
for name in scores:
    best = scores[name][layer].argsort(descending=True, stable=True)[:5]
    print(f"  {name:<42} {best.tolist()}")

# What is computed for them, as a query plan: what the pass gathers, and the steps that follow.
print(f"\n{evoprune.plan(functions)}")
