"""expected.py - the verdict of each committed file: None if it trains as in its framework, else a part of the refusal.

scripts/exporters prints the verdicts of the files that are not listed here, too."""

EXPECTED = {
    ("bert", "recipe"): None,
    ("clip", "recipe"): None,
    ("conv3d", "recipe"): None,
    ("convnext", "default"): None,
    ("convnext", "recipe"): None,
    ("deeplab", "recipe"): None,
    ("densenet", "recipe"): None,
    ("efficientnet", "recipe"): None,
    ("gpt2", "recipe"): None,
    ("gru", "recipe"): None,
    ("keras_mlp", "tensorflow_default"): None,
    ("keras_mlp", "tensorflow_recipe"): None,
    ("lstm", "recipe"): None,
    ("mamba", "recipe"): None,
    ("mlp", "default"): None,
    ("mlp", "recipe"): None,
    ("mobilenet_v3", "recipe"): None,
    ("resnet", "recipe"): None,
    ("swin", "recipe"): None,
    ("t5", "recipe"): None,
    ("timm_mixer", "default"): None,
    ("timm_mixer", "recipe"): None,
    ("timm_regnet", "recipe"): None,
    ("vae", "recipe"): None,
    ("vit", "recipe"): None,
    ("wavenet", "recipe"): None,
    ("whisper", "recipe"): None,
}
