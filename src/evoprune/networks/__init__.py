"""The paper's networks, and two small ones for the embedded data sets."""

from evoprune.networks.layers import ChannelSelect
from evoprune.networks.mobilenet import MobileNetV2, mobilenet_v2
from evoprune.networks.resnet import (
    ImageNetResNet,
    PreactResNet,
    ResNet,
    preact_resnet,
    resnet18,
    resnet20,
    resnet56,
)
from evoprune.networks.small import LeNet5, digits_net, shapes_net
from evoprune.networks.vgg import VGG, ImageNetVGG, vgg16, vgg16_imagenet, vgg19

__all__ = [
    "ChannelSelect",
    "ImageNetResNet",
    "ImageNetVGG",
    "LeNet5",
    "MobileNetV2",
    "PreactResNet",
    "ResNet",
    "VGG",
    "digits_net",
    "mobilenet_v2",
    "preact_resnet",
    "resnet18",
    "resnet20",
    "resnet56",
    "shapes_net",
    "vgg16",
    "vgg16_imagenet",
    "vgg19",
]
