"""torch_vision.py - networks of torchvision and timm with few channels. Stochastic depth and dropout are disabled: the
random numbers of PyTorch are not reproducible elsewhere."""
from functools import partial

import timm
from torch import nn
from torchvision import models
from torchvision.models import convnext as tv_convnext
from torchvision.models import efficientnet as tv_efficientnet
from torchvision.models import mobilenetv3 as tv_mobilenet
from torchvision.models import resnet as tv_resnet
from torchvision.models.segmentation import deeplabv3 as tv_deeplab

from registry import BATCH_NORM, network
from spec import floats, integers

IMAGE = {"x": floats(3, 32, 32)}
CLASS = integers(below=10)


class NarrowResNet(tv_resnet.ResNet):
    """torchvision's ResNet, its channels divided by 16."""

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.conv1, self.bn1, self.inplanes = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), 4
        return super()._make_layer(block, planes // 16, blocks, stride, dilate)


def narrow_resnet(block, layers, **options):
    net = NarrowResNet(block, layers, **options)
    net.fc = nn.Linear(32 * block.expansion, 10)
    return net


@network({"x": floats(3, 64, 64)}, CLASS, **BATCH_NORM)
def resnet():
    return narrow_resnet(tv_resnet.BasicBlock, [1, 1, 1, 1])


@network(IMAGE, CLASS)
def convnext():
    setting = [tv_convnext.CNBlockConfig(8, 16, 1), tv_convnext.CNBlockConfig(16, None, 1)]
    return tv_convnext.ConvNeXt(setting, stochastic_depth_prob=0.0, layer_scale=0.5, num_classes=10)


@network({"x": floats(3, 64, 64)}, CLASS, **BATCH_NORM)
def efficientnet():
    conf = partial(tv_efficientnet.MBConvConfig, width_mult=1.0, depth_mult=1.0)
    setting = [conf(1, 3, 1, 8, 8, 1), conf(4, 3, 2, 8, 16, 1), conf(4, 5, 1, 16, 16, 1)]
    return models.EfficientNet(setting, dropout=0.0, stochastic_depth_prob=0.0, num_classes=10, last_channel=32)


@network({"x": floats(3, 64, 64)}, CLASS, **BATCH_NORM)
def mobilenet_v3():
    conf = partial(tv_mobilenet.InvertedResidualConfig, width_mult=1.0)
    setting = [conf(8, 3, 8, 8, True, "RE", 2, 1), conf(8, 3, 24, 16, False, "RE", 1, 1), conf(16, 5, 32, 16, True, "HS", 1, 1)]
    return models.MobileNetV3(setting, last_channel=32, num_classes=10, dropout=0.0)


@network({"x": floats(3, 64, 64)}, CLASS, **BATCH_NORM)
def densenet():
    return models.DenseNet(growth_rate=6, block_config=(2, 2), num_init_features=8, bn_size=2, num_classes=10)


@network(IMAGE, CLASS)
def swin():
    return models.SwinTransformer(patch_size=[2, 2], embed_dim=8, depths=[2], num_heads=[2], window_size=[4, 4],
                                  stochastic_depth_prob=0.0, num_classes=10)


@network({"x": floats(3, 32, 32)}, integers(32, 32, below=4), **BATCH_NORM)
def deeplab():
    backbone = narrow_resnet(tv_resnet.BasicBlock, [1, 1, 1, 1])
    backbone = models._utils.IntermediateLayerGetter(backbone, return_layers={"layer2": "out"})
    head = nn.Sequential(tv_deeplab.ASPP(8, [1, 2], out_channels=12), nn.Conv2d(12, 12, 3, padding=1, bias=False),
                         nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1))
    head[0].project[3].p = 0.0  # its dropout
    return models.segmentation.DeepLabV3(backbone, head)


@network({"x": floats(3, 16, 16)}, CLASS)
def timm_mixer():
    return timm.models.MlpMixer(num_classes=10, img_size=16, patch_size=4, num_blocks=2, embed_dim=24)


@network({"x": floats(3, 64, 64)}, CLASS, **BATCH_NORM)
def timm_regnet():
    conf = timm.models.regnet.RegNetCfg(depth=4, w0=8, wa=16.0, wm=1.6, group_size=8, stem_width=8, se_ratio=0.25)
    return timm.models.RegNet(conf, num_classes=10)


@network({"x": floats(3, 16, 16)}, CLASS)
def timm_eva02():
    return timm.models.Eva(img_size=16, patch_size=4, num_classes=10, embed_dim=24, depth=2, num_heads=2, qkv_fused=False,
                           swiglu_mlp=True, use_rot_pos_emb=True, ref_feat_shape=(4, 4))


