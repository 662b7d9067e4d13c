"""What is found where: names, roots, carriers, readers, and the four operands' sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.prune import l1_unstructured
from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.errors import NetworkError, SiteError
from evoprune.pruning.sites import (
    Site,
    batch_norm_of,
    filters_of,
    first_read,
    layer_filters_of,
    maps_of,
    sites,
)


def by_name(net: nn.Module, x: Tensor, **options: object) -> dict[str, Site]:
    return {site.name: site for site in sites(net, x, **options)}


def read_maps(net: nn.Module, x: Tensor, site: Site) -> Tensor:
    """What the first reader sees, through a hook as scoring places it."""
    reader, seen = first_read(site), []
    hook = net.get_submodule(reader.module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net.eval()
    net(x)
    hook.remove()
    return maps_of(site, seen[reader.call])


def test_lenet() -> None:
    net, x = networks.LeNet5(), torch.randn(2, 1, 28, 28)
    found = evoprune.sites(net, x)
    assert [site.name for site in found] == ["conv1", "conv2", "fc1"]
    assert [site.channels for site in found] == [20, 50, 500]
    assert [site.map_size for site in found] == [(12, 12), (4, 4), (1, 1)]
    assert [first_read(site).module for site in found] == ["conv2", "fc1", "fc2"]
    assert found[0].carriers == ("pool",) and found[1].carriers == ("pool", "flatten")
    assert all(site.batch_norm is None for site in found)
    assert str(found[1]) == "conv2: 50 channels of conv2, read by fc1"
    maps = net.pool(net.conv2(net.pool(net.conv1(x))))
    torch.testing.assert_close(read_maps(net, x, found[1]), maps)
    assert torch.equal(batch_norm_of(net, found[0]), torch.tensor([[1.0, 0, 0, 1]]).repeat(20, 1))


def test_flattened_features_are_a_site_of_their_own_where_asked() -> None:
    net, x = networks.LeNet5(), torch.randn(2, 1, 28, 28)
    found = by_name(net, x, flatten_features=["fc1"])
    assert list(found) == ["conv1", "conv2", "fc1.in", "fc1"]
    features = found["fc1.in"]
    assert (features.channels, features.map_size, features.root) == (800, (1, 1), "conv2")
    assert features.parents[:17] == (("conv2", 0),) * 16 + (("conv2", 1),)
    assert read_maps(net, x, features).shape == (2, 800, 1, 1)
    # A feature's W_I is the filter of its map; W is all of them.
    assert torch.equal(filters_of(net, features)[16 * 7 + 3], net.conv2.weight[7])
    assert layer_filters_of(net, features).shape == (50, 20, 5, 5)
    with pytest.raises(SiteError, match=r"behind a flatten, got 'fc2'; this network has fc1"):
        sites(net, x, flatten_features=["fc2"])


def test_a_stream_has_several_producers_and_w_is_the_one_that_wrote_last() -> None:
    net, x = networks.ImageNetResNet((2, 2), 5), torch.randn(1, 3, 24, 24)
    found = by_name(net, x)
    stem, wide = found["conv1"], found["layer2.0.conv2"]
    assert [rows.module for rows in stem.producers] == ["conv1", "layer1.0.conv2", "layer1.1.conv2"]
    assert [r.module for r in stem.readers] == [
        "layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1", "layer2.0.downsample.0",
    ]  # fmt: skip
    assert stem.writer.module == "conv1" and stem.batch_norm == "bn1"
    # The first reader of the second stream comes after the downsampling has written to it.
    assert wide.root == "layer2.0.conv2" and wide.writer.module == "layer2.0.downsample.0"
    assert wide.batch_norm == "layer2.0.downsample.1"
    assert filters_of(net, wide).shape == (128, 64, 1, 1)
    norm = net.layer2[0].downsample[1]
    norm.running_mean.uniform_()
    columns = torch.stack([norm.weight, norm.bias, norm.running_mean, norm.running_var], 1)
    assert torch.equal(batch_norm_of(net, wide), columns)


def test_selection_leaves_streams_whole_and_lets_each_block_choose() -> None:
    net, x = networks.preact_resnet(20, bottleneck=False), torch.randn(1, 3, 32, 32)
    found = by_name(net, x, selection=True)
    assert list(found)[:4] == ["layer1.0.conv1.in", "layer1.0.conv1", "layer1.1.conv1.in", "layer1.1.conv1"]
    assert "conv1" not in found and len(found) == 18
    first, second, third = (found[f"layer1.{block}.conv1.in"] for block in range(3))
    assert (first.root, first.batch_norm) == ("conv1", "bn1")  # no batch-norm before the very first block
    assert (second.root, second.batch_norm) == ("layer1.0.conv2", "layer1.1.bn1")
    assert third.root == "layer1.1.conv2" and third.selects == "layer1.2.conv1"
    assert found["layer2.0.conv1.in"].channels == 16 and found["layer2.1.conv1.in"].channels == 32
    maps = read_maps(net, x, second)
    assert maps.shape == (1, 16, 32, 32) and maps.min() >= 0  # after batch-norm and ReLU


def test_depthwise_layers_carry() -> None:
    net, x = networks.mobilenet_v2(), torch.randn(1, 3, 64, 64)
    found = by_name(net, x)
    stem = found["features.0.0"]
    assert "features.1.conv.0.0" in stem.carriers and "features.1.conv.0.0" not in found
    assert first_read(stem).module == "features.1.conv.1"
    assert stem.batch_norm == "features.1.conv.0.1"  # the depthwise layer's, not the stem's
    assert stem.writer.module == "features.0.0"
    expand = found["features.2.conv.0.0"]
    assert expand.channels == 96 and expand.map_size == (16, 16)


def test_each_part_of_a_concatenation_is_a_site_with_its_offset() -> None:
    factory, shape = ZOO["densenet"]
    net = factory()
    found = by_name(net, torch.randn(shape))
    part = found["convs.1"]
    assert [(r.module, r.offset, r.width) for r in part.readers] == [
        ("convs.2", 10, 4),
        ("transition.2", 10, 4),
    ]
    assert part.batch_norm == "norms.2" and part.norm.rows == (10, 11, 12, 13)
    net.norms[2].weight.data.uniform_()
    assert torch.equal(batch_norm_of(net, part)[:, 0], net.norms[2].weight[10:14])
    assert read_maps(net, torch.randn(shape), part).shape == (2, 4, 8, 8)


def test_a_gate_is_no_writer() -> None:
    factory, shape = ZOO["squeeze-and-excite"]
    found = by_name(factory(), torch.randn(shape))
    assert found["conv1"].writer.module == "conv1" and found["conv1"].batch_norm == "bn1"
    assert [rows.module for rows in found["conv1"].producers] == ["conv1", "excite"]
    assert "squeeze" in {reader.module for reader in found["conv1"].readers}


def test_a_shared_layer_is_read_in_each_of_its_calls() -> None:
    factory, shape = ZOO["shared"]
    stem = by_name(factory(), torch.randn(shape))["stem"]
    assert [(r.module, r.call) for r in stem.readers if r.module == "again"] == [("again", 0), ("again", 1)]


def test_transposed_filters_are_turned_round() -> None:
    factory, shape = ZOO["u-net"]
    net = factory()
    found = by_name(net, torch.randn(shape))
    assert torch.equal(filters_of(net, found["up"]), net.up.weight.transpose(0, 1))
    grouped = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Conv2d(6, 2, 1))
    site = by_name(grouped, torch.randn(1, 3, 5, 5))["1"]
    filters = filters_of(grouped, site)
    assert filters.shape == (6, 2, 3, 3) and torch.equal(filters[4], grouped[1].weight[2:, 1])


def test_padding_by_hand_is_followed_channel_by_channel() -> None:
    """Where Torch-Pruning loses the place: the stem's channels are the middle ones of the wider stage."""
    factory, shape = ZOO["option a, padded by hand"]
    found = by_name(factory(), torch.randn(shape))
    stem = found["conv1"]
    assert [(r.module, r.offset, r.width) for r in stem.readers][-2:] == [
        ("layers.2.conv1", 3, 6),
        ("linear", 3, 6),
    ]
    assert {rows.module: rows.rows for rows in stem.producers}["layers.1.conv2"] == tuple(range(3, 9))


def test_our_own_option_a_lets_the_stages_go_apart() -> None:
    found = by_name(networks.resnet20(), torch.randn(1, 3, 32, 32))
    assert found["layer2.0.conv2"].channels == 32
    assert {r.module for r in found["conv1"].readers} >= {"layer1.0.conv1", "layer2.0.shortcut"}


@pytest.mark.parametrize("name", ZOO)
def test_sites_look_at_nothing_but_the_shapes(name: str) -> None:
    factory, shape = ZOO[name]
    with torch.device("meta"):
        there = sites(factory(), torch.empty(shape))
    assert there == sites(factory(), torch.randn(shape))


def test_inputs_come_in_every_form() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(1, 4, 1)
            self.fc = nn.Conv2d(4, 2, 1)

        def forward(self, image: Tensor, depth: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            return {"out": self.fc(torch.relu(self.left(image) + scale * self.right(depth)))}

    image, depth = torch.randn(1, 3, 4, 4), torch.randn(1, 1, 4, 4)
    names = [site.name for site in sites(Two(), (image, depth))]
    assert names == [site.name for site in sites(Two(), {"image": image, "depth": depth})] == ["left"]
    assert names == [site.name for site in sites(Two(), (image, depth, 2.0))]


def test_large_example_batches_cost_no_more() -> None:
    seen = []
    net = networks.digits_net()
    net.register_forward_hook(lambda _, args, output: seen.append(len(args[0])))
    evoprune.Surgeon(net, torch.randn(500, 1, 8, 8)).cut({"0": [0, 1]})
    assert seen and max(seen) <= 4


def between(middle: nn.Module | Callable[[Tensor], Tensor], after: int = 8) -> nn.Module:
    """A network with this in the middle."""

    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.middle = middle
            self.last = nn.Conv2d(after, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.middle(self.first(x)))

    return Middle()


def shuffle(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class OwnGain(nn.Conv2d):
    """Its weight is rescaled by a parameter that nobody else knows of."""

    def __init__(self) -> None:
        super().__init__(8, 8, 1)
        self.gain = nn.Parameter(torch.ones(8, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight * self.gain, self.bias)


class Standardised(nn.Conv2d):
    """Each filter is brought to mean 0 and deviation 1 before it is applied: that is not cut along."""

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std(
            (1, 2, 3), keepdim=True
        )
        return functional.conv2d(x, weight, self.bias)


class Sparse(nn.Conv2d):
    """Some of its weights are held at zero by a mask, which no cut knows of."""

    def __init__(self) -> None:
        super().__init__(8, 8, 1)
        self.register_buffer("mask", torch.rand(8, 8, 1, 1).round())

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight * self.mask, self.bias)


class Tied(nn.Module):
    """A decoder that goes back by the encoder's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.code = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv_transpose2d(self.code(self.encode(x)), self.encode.weight)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


POOLED, UNPOOL = (nn.Flatten(2), nn.AdaptiveAvgPool1d(1)), nn.Unflatten(2, (1, 1))
REFUSED: dict[str, tuple[nn.Module, str]] = {
    "GroupNorm": (between(nn.GroupNorm(2, 8)), "GroupNorm 'middle'"),
    "LayerNorm": (between(nn.LayerNorm([8, 6, 6])), "LayerNorm 'middle'"),
    "LocalResponseNorm": (between(nn.LocalResponseNorm(3)), "LocalResponseNorm 'middle'"),
    "ChannelShuffle": (between(nn.ChannelShuffle(2)), "ChannelShuffle 'middle'"),
    "shuffle by hand": (between(shuffle), "operation view in Middle.* as a channel shuffle does"),
    "PixelShuffle": (between(nn.PixelShuffle(2), 2), "PixelShuffle 'middle'"),
    "softmax": (between(lambda x: x.softmax(1)), "operation softmax"),
    "mean over channels": (between(lambda x: x - x.mean(1, keepdim=True)), "operation mean"),
    "sort": (between(lambda x: x.sort(1)[0]), "operation sort"),
    "flip": (between(lambda x: x.flip(1)), "operation flip"),
    "roll": (between(lambda x: torch.roll(x, 1, dims=1)), "operation roll"),
    "split": (between(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)), "operation chunk"),
    "index": (between(lambda x: x[:, [1, 0, 2, 3, 4, 5, 6, 7]]), "operation index"),
    "half": (between(lambda x: x[:, :4], 4), "operation slice"),
    "einsum": (between(lambda x: torch.einsum("nchw,cd->ndhw", x, torch.eye(8))), "operation einsum"),
    "fourier": (between(lambda x: torch.fft.fft2(x).real), "operation fft_fft2"),
    "a function's convolution": (
        between(lambda x: functional.conv2d(x, torch.ones(8, 8, 1, 1))), "operation conv2d"
    ),
    "a parameter of its own": (between(Scaled()), "operation mul in Scaled 'middle'.* tensor of 8 channels"),
    "spectral norm": (
        between(spectral_norm(nn.Conv2d(8, 8, 1))), "weight of .* 'middle' is computed"
    ),
    "a layer's own parameter": (between(OwnGain()), "OwnGain 'middle' has parameters beside .*: gain"),
    "standardised weights": (
        between(Standardised(8, 8, 1)), "operation (std|mean) in Standardised 'middle' works with .*weight'"
    ),
    "masked weights": (between(Sparse()), r"operation mul in Sparse 'middle' works with 'middle\.weight'"),
    "a weight that goes both ways": (between(Tied()), "conv_transpose2d in Tied 'middle' works with 'middle"),
    "attention": (
        between(lambda x: functional.scaled_dot_product_attention(x, x, x)), "scaled_dot_product_attention"
    ),
    "convolution over channels": (
        between(nn.Sequential(*POOLED, Transposed(), nn.Conv1d(1, 1, 3, padding=1), Transposed(), UNPOOL)),
        r"Conv1d 'middle\.3' works along another axis",
    ),
    "numpy": (between(lambda x: torch.from_numpy(x.numpy())), "or nothing, reads them"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_mixes_channels_is_refused_by_name(case: str) -> None:
    net, message = REFUSED[case]
    with pytest.raises(SiteError, match=message) as caught:
        sites(net, torch.randn(2, 3, 6, 6))
    assert "ignore=[" in str(caught.value) and "'first'" in str(caught.value)
    left_alone = [
        name for name, _ in net.named_modules() if name != "last" and f"'{name}': " in str(caught.value)
    ]
    assert sites(net, torch.randn(2, 3, 6, 6), ignore=left_alone) == ()


@pytest.mark.parametrize(
    "middle",
    [
        nn.LayerNorm([6, 6]),
        nn.Softmax(dim=-1),
        nn.Hardtanh(),
        nn.Upsample(scale_factor=2),
        nn.ZeroPad2d(1),
        nn.ReflectionPad2d(1),
        nn.Dropout2d(),
        lambda x: x.transpose(2, 3).flip(2),
        lambda x: x.flatten(2).unflatten(2, (6, 6)),
        lambda x: x.reshape(2, -1).view(2, -1, 6, 6),
        lambda x: x.permute(0, 2, 3, 1).clone().movedim(-1, 1),
        lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
        lambda x: x * torch.sigmoid(x.amax((2, 3), keepdim=True)).expand_as(x),
        lambda x: x / x.norm(dim=(2, 3), keepdim=True),
        lambda x: functional.interpolate(x, size=(3, 5), mode="bicubic"),
        lambda x: x[:, :, 1:, ::2][..., :2],
        lambda x: torch.stack([x, x.neg()]).sum(0),
        lambda x: torch.stack([x, x.neg()], -1).amax(-1),
        lambda x: x.repeat(1, 1, 2, 1).repeat_interleave(2, dim=3),
    ],
)
def test_what_keeps_channels_apart_is_followed(middle: nn.Module) -> None:
    net = between(middle)
    surgeon = evoprune.Surgeon(net, torch.randn(2, 3, 6, 6))
    assert [site.name for site in surgeon.sites] == ["first"]
    surgeon.cut({"first": [1, 2, 7]})


def test_layers_of_other_classes_are_followed_where_they_apply_their_weights_as_they_are() -> None:
    class Padding(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(functional.pad(x, (1, 1, 1, 1)), 0.5 * self.weight.to(x.dtype))

    class Activating(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return functional.leaky_relu(super().forward(x))

    middle = nn.Sequential(Padding(8, 8, 3), Activating(8))
    surgeon = evoprune.Surgeon(between(middle), torch.randn(2, 3, 6, 6))
    surgeon.cut({"first": [1, 2, 7], "middle.0": [0, 5]})


def test_an_embedding_that_shares_its_weight_is_named() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.wide = nn.Embedding(9, 6), nn.Linear(6, 8)
            self.narrow, self.decode = nn.Linear(8, 6), nn.Linear(6, 9)
            self.decode.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.relu(self.narrow(torch.relu(self.wide(self.embed(x))))))

    words = torch.arange(8).view(2, 4)
    with pytest.raises(SiteError, match=r"'narrow': Embedding 'embed' .* works with 'decode\.weight' itself"):
        sites(Words(), words)
    evoprune.Surgeon(Words(), words, ignore=["narrow"]).cut({"wide": [1, 4]})


def test_outputs_that_are_mixed_are_no_ones_business() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 4, 1)
            self.boxes, self.labels = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(x)
            boxes = self.boxes(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4)
            return boxes, self.labels(x).softmax(1).argmax(1)

    assert [site.name for site in sites(Heads(), torch.randn(2, 3, 4, 4))] == ["body"]


@dataclass
class Output:
    logits: Tensor
    inner: object = None


@pytest.mark.parametrize("wrap", [Output, lambda x: [Output(x)], lambda x: {"more": SimpleNamespace(x=x)}])
def test_what_is_given_inside_objects_stays_whole(wrap: Callable[[Tensor], object]) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.fc = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Output:
            x = self.first(x)
            return Output(self.fc(self.second(x).mean((2, 3))), inner=wrap(x))

    assert [site.name for site in sites(Nested(), torch.randn(2, 3, 4, 4))] == ["second"]


def test_an_output_without_tensors_is_refused() -> None:
    class Silent(nn.Sequential):
        def forward(self, x: Tensor) -> object:
            return iter([super().forward(x)])

    with pytest.raises(
        NetworkError, match="no tensor can be found in the output of the network, a list_iterator"
    ):
        sites(Silent(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)), torch.randn(2, 3, 4, 4))


class Auxiliary(nn.Module):
    """A head that only training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1), nn.Linear(6, 2)
        self.aux = nn.Sequential(nn.Conv2d(8, 5, 1), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.aux_fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = torch.relu(self.first(x))
        y = self.fc(self.second(x).mean((2, 3)))
        return (y, self.aux_fc(self.aux(x))) if self.training else y


def test_a_head_that_only_training_calls_is_cut_along() -> None:
    net, x = Auxiliary(), torch.randn(2, 3, 4, 4)
    surgeon = evoprune.Surgeon(net, x)
    assert [site.name for site in surgeon.sites] == ["first", "second"]
    assert [reader.module for reader in surgeon.sites[0].readers] == ["second", "aux.0"]
    pruned = surgeon.cut({"first": [1, 2, 7]})
    assert torch.equal(pruned.aux[0].weight, net.aux[0].weight[:, [1, 2, 7]])
    assert [y.shape for y in pruned.train()(x)] == [(2, 2), (2, 2)]
    assert evoprune.cost(net, x).macs == 16 * (3 * 8 + 8 * 6) + 12
    evoprune.prune(net, "var_g(F)", (torch.randn(4, 3, 4, 4), torch.arange(4) % 2), ratio=0.5)


@pytest.mark.parametrize(
    ("look", "operation"),
    [
        (lambda x: x > 0, "operation is_nonzero"),
        (lambda x: x.item() > 0, "operation item"),
        (lambda x: x.detach().numpy() > 0, "operation numpy"),
        (lambda x: x.tolist() > 0, "operation tolist"),
    ],
)
def test_a_way_that_depends_on_values_is_refused_where_it_hides_layers(
    look: Callable[[Tensor], bool], operation: str
) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.left(self.first(x)) if look(x.sum()) else self.right(self.first(x))

    with pytest.raises(NetworkError, match=rf"looks at values .*\(the {operation} .*not call 'right'"):
        sites(Branching(), torch.ones(2, 3, 4, 4))


def test_a_gate_of_one_channel_leaves_it_whole() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gate, self.last = (
                nn.Conv2d(3, 8, 1),
                nn.Conv2d(8, 1, 3, padding=1),
                nn.Conv2d(8, 2, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            return self.last(x * torch.sigmoid(self.gate(x)))

    surgeon = evoprune.Surgeon(Gated(), torch.randn(1, 3, 5, 5))
    assert [site.name for site in surgeon.sites] == ["body"]
    surgeon.cut({"body": [0, 4]})


def test_networks_without_followable_layers() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(x, self.weight)

    assert sites(Functional(), torch.randn(1, 3, 4, 4)) == ()
    with pytest.raises(SiteError, match=r"no site.*\n  the operation conv2d in Functional"):
        evoprune.prune(Functional(), "l1", example_inputs=torch.randn(1, 3, 4, 4), ratio=0.5)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.script"):
        compiled = torch.jit.script(networks.digits_net())
    with pytest.raises(NetworkError, match=r"'the network' is a .*ScriptModule.* before torch.jit"):
        sites(compiled, torch.randn(1, 1, 8, 8))


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_compiled_networks_are_refused() -> None:
    compiled = torch.compile(networks.digits_net(), backend="eager")
    with pytest.raises(NetworkError, match=r"'the network' is a OptimizedModule.* before torch.compile"):
        sites(compiled, torch.randn(1, 1, 8, 8))


def test_what_is_no_network_or_not_yet_one_is_refused() -> None:
    x = torch.randn(1, 1, 28, 28)
    for given in ("lenet5", networks.LeNet5):
        with pytest.raises(NetworkError, match=r"is to be an nn.Module, got .*[lL]e[nN]et5"):
            evoprune.prune(given, "l1", example_inputs=x, ratio=0.5)
    with pytest.raises(NetworkError, match=r"'0\.weight' has no size yet: call the network once"):
        sites(nn.Sequential(nn.LazyConv2d(4, 3), nn.Conv2d(4, 2, 1)), x)
    with pytest.raises(NetworkError, match=r"inputs are empty \(\[0, 1, 28, 28\]\)"):
        sites(networks.LeNet5(), x[:0])


def test_tensors_that_a_call_has_left_are_no_hindrance() -> None:
    masked = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1))
    l1_unstructured(masked[1], "weight", 0.5)
    with pytest.raises(SiteError, match=r"the weight of Conv2d '1' is computed \(parametrized or masked\)"):
        sites(masked, torch.randn(1, 1, 8, 8))

    class Looked(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = self[0](x)
            return self[1](self.seen)

    net, x = Looked(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1)), torch.randn(1, 1, 8, 8)
    net(x)
    seen = net.seen
    evoprune.Surgeon(net, x).cut({"0": [1, 3]})
    assert net.seen is seen and seen.requires_grad


def test_the_size_of_the_batch_may_be_written_out() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8 * 16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.first(x).view(8, -1))

    surgeon = evoprune.Surgeon(Written(), torch.randn(8, 3, 4, 4))
    assert surgeon.cut({"first": [1, 5]}).fc.in_features == 32


def test_what_no_layer_wrote_is_no_site() -> None:
    pixels = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(SiteError, match="got '1'; this network has none"):
        sites(pixels, torch.randn(1, 1, 4, 4), flatten_features=["1"])
    chosen = nn.Sequential(networks.ChannelSelect([2, 0], 3), nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1))
    with pytest.raises(SiteError, match="'0': no layer with filters writes them"):
        sites(chosen, torch.randn(1, 3, 4, 4))
    assert [site.name for site in sites(chosen, torch.randn(1, 3, 4, 4), ignore=["0"])] == ["1"]


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(SiteError, match=r"unknown site 'conv3' .*the sites are conv1, conv2, fc1"):
        sites(networks.LeNet5(), torch.randn(1, 1, 28, 28), ignore=["conv3"])
    with pytest.raises(SiteError, match=r"ignore is a list of names of sites, got 'conv1'"):
        sites(networks.LeNet5(), torch.randn(1, 1, 28, 28), ignore="conv1")
    with pytest.raises(SiteError, match=r"flatten_features is a list .*got 'fc1'; a single one is \['fc1'\]"):
        sites(networks.LeNet5(), torch.randn(1, 1, 28, 28), flatten_features="fc1")
    with pytest.raises(SiteError, match=r"ignore is a list of names of sites, got None"):
        sites(networks.LeNet5(), torch.randn(1, 1, 28, 28), ignore=None)


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(NetworkError, match=r"failed on the example inputs \(\[1, 3, 28, 28\]\)"):
        sites(networks.LeNet5(), torch.randn(1, 3, 28, 28))
