"""torch_transformers.py - networks of Hugging Face transformers with one or two narrow layers and no dropout."""
import transformers as hf

from registry import network
from spec import floats, integers, position

TOKENS = {"input_ids": integers(8, below=30)}
NEXT = integers(8, below=30)
CLASS = integers(below=5)
DECODER = dict(vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=32, use_cache=False)
ENCODER = dict(vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5)


def language(name, config):
    def make():
        return hf.AutoModelForCausalLM.from_config(config)
    network(TOKENS, NEXT, recipe="huggingface", name=name)(make)


language("llama", hf.LlamaConfig(**DECODER))
language("qwen", hf.Qwen3Config(head_dim=4, **DECODER))
language("mistral", hf.MistralConfig(sliding_window=4, **DECODER))
language("gemma", hf.GemmaConfig(head_dim=4, pad_token_id=None, **DECODER))
language("gpt2", hf.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                               attn_pdrop=0.0, use_cache=False))
language("mamba", hf.MambaConfig(vocab_size=30, hidden_size=12, state_size=4, num_hidden_layers=1, time_step_rank=4,
                                 use_cache=False))


@network(TOKENS, CLASS, recipe="huggingface")
def bert():
    return hf.BertForSequenceClassification(hf.BertConfig(pad_token_id=None, **ENCODER))


@network(TOKENS, NEXT, recipe="huggingface")
def bert_mlm():
    """The decoder and the head share one bias."""
    return hf.BertForMaskedLM(hf.BertConfig(pad_token_id=None, **ENCODER))


@network({"input_ids": integers(8, below=30), "decoder_input_ids": integers(6, below=30)}, integers(6, below=30),
         recipe="huggingface")
def bart():
    return hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=30, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=24,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=16, dropout=0.0, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=0))


@network({"input_ids": integers(8, below=30), "decoder_input_ids": integers(6, below=30)}, integers(6, below=30),
         recipe="huggingface")
def t5():
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=30, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4,
                                                     dropout_rate=0.0, use_cache=False, attn_implementation="eager"))


@network({"pixel_values": floats(3, 16, 16)}, CLASS, recipe="huggingface")
def vit():
    return hf.ViTForImageClassification(hf.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5))


@network({"input_ids": integers(8, below=30), "pixel_values": floats(3, 16, 16)}, position(), recipe="huggingface")
def clip():
    layer = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4)
    return hf.CLIPModel(hf.CLIPConfig(
        text_config=dict(vocab_size=30, max_position_embeddings=8, eos_token_id=2, **layer),
        vision_config=dict(image_size=16, patch_size=8, **layer), projection_dim=12))


@network({"input_features": floats(8, 16), "decoder_input_ids": integers(6, below=30)}, integers(6, below=30),
         recipe="huggingface", job={"frozen": ["model.encoder.embed_positions.weight"]})
def whisper():
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(
        vocab_size=30, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=8, max_target_positions=16,
        dropout=0.0, use_cache=False, pad_token_id=None, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None))
