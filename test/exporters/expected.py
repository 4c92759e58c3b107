"""expected.py - the verdict of each committed file: None if it trains as in its framework, else a part of the refusal.

scripts/exporters prints the verdicts of the files that are not listed here, too."""

EXPECTED = {
    ("bert", "recipe"): None,
    ("clip", "recipe"): None,
    ("convnext", "recipe"): None,
    ("gru", "recipe"): None,
    ("lstm", "recipe"): None,
    ("mlp", "default"): None,
    ("mlp", "recipe"): None,
    ("swin", "recipe"): None,
    ("t5", "recipe"): None,
    ("timm_mixer", "recipe"): None,
    ("vit", "recipe"): None,
    ("whisper", "recipe"): None,
}
