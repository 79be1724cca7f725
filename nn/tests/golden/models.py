"""Writes the golden suites of models beside this file: `python models.py`, with PyTorch, transformers and safetensors;
`python models.py gpt2` writes those of one model.

Everything is computed in float64 (as far as transformers does not round to float32 itself) from parameters and inputs
that float32 holds exactly, and stored in float32. A model M is `models-M.json`, a list of cases, beside
`models-M.safetensors`. A case has a name, its configuration, and the names of its inputs in the order of the call.
Tensors are stored as "<name>|<group>|<tensor>": "state" and "grad" hold the parameters and their gradients under the
names and in the layouts of files that transformers writes; "in", "out", "dout" the inputs, the outputs and the upstream
gradients of these; "generated" the prompt and its greedy continuation.

`models-presets.json` lists names and shapes of the tensors of well-known models, made from their configurations alone.
"""

import copy
import json
import pathlib
import sys
import tempfile
import zlib

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.core_model_loading import revert_weight_conversion

from case import draw_parameter, f32

FOLDER = pathlib.Path(__file__).parent


def file_of(model):
    """The tensors of the file that holds a model."""
    if not hasattr(model, "save_pretrained"):
        return model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return named(model, load_file(f"{folder}/model.safetensors"))


def named(model, tensors):
    """A file of a model without a head lacks the prefix that others have."""
    prefix = "bert." if isinstance(model, BertModel) else ""
    return {prefix + n: t for n, t in tensors.items()}


class Suite:
    def __init__(self, model):
        self.model, self.cases, self.tensors = model, [], {}

    def case(self, label, config, model, inputs, call=None, prompt=None):
        """inputs: name -> tensor, shape of floats, or (limit, shape) of ids."""
        name = f"{self.model}/{label}"
        g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        model = model.double().eval()
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(f32(draw_parameter(n, p, g)))

        def value(v):
            if torch.is_tensor(v):
                return v
            if len(v) == 2 and isinstance(v[1], tuple):
                return torch.randint(v[0], v[1], generator=g)
            return f32(torch.randn(v, generator=g, dtype=torch.float64))

        values = {n: value(v) for n, v in inputs.items()}
        leaves = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in values.items()}
        outs = (call or (lambda m, ids: (m(ids).logits,)))(model, **leaves)
        douts = [value(tuple(y.shape)) for y in outs]
        sum((y * w).sum() for y, w in zip(outs, douts)).backward()
        grads = copy.deepcopy(model)
        for p, q in zip(grads.parameters(), model.parameters()):
            p.data = q.grad
        groups = {
            "state": file_of(model),
            "grad": file_of(grads),
            "in": values,
            "out": {str(i): y for i, y in enumerate(outs)},
            "dout": {str(i): w for i, w in enumerate(douts)},
        }
        if prompt is not None:
            new = torch.randint(prompt[0], prompt[1], generator=g)
            # With a mask of its own, since the token for padding is an ordinary one here.
            all = model.generate(
                new,
                attention_mask=torch.ones_like(new),
                do_sample=False,
                max_new_tokens=prompt[2],
                eos_token_id=None,
                pad_token_id=0,
            )
            groups["generated"] = {"prompt": new, "all": all}
        for group, tensors in groups.items():
            for n, t in tensors.items():
                t = t.detach().float() if t.is_floating_point() else t.detach()
                self.tensors[f"{name}|{group}|{n}"] = t.clone(memory_format=torch.contiguous_format)
        self.cases.append({"name": name, "config": config, "inputs": list(inputs)})

    def write(self):
        path = FOLDER / f"models-{self.model}"
        lines = ",\n".join(json.dumps(c) for c in self.cases)
        path.with_suffix(".json").write_text(f"[\n{lines}\n]\n")
        save_file(self.tensors, path.with_suffix(".safetensors"))
        size = path.with_suffix(".safetensors").stat().st_size
        print(f"{path.name}: {len(self.cases)} cases, {size // 1024} KiB")


def gpt2():
    s = Suite("gpt2")

    def case(label, shape, **config):
        model = GPT2LMHeadModel(GPT2Config(**config, bos_token_id=0, eos_token_id=0, attn_implementation="eager"))
        vocab = config["vocab_size"]
        s.case(label, config, model, {"ids": (vocab, shape)}, prompt=(vocab, (2, 3), 6))

    case("two_blocks", (2, 7), vocab_size=24, n_positions=12, n_embd=16, n_layer=2, n_head=4, n_inner=64)
    case("wide_inner", (1, 9), vocab_size=11, n_positions=9, n_embd=8, n_layer=2, n_head=1, n_inner=20)
    case(
        "large_eps",
        (3, 4),
        vocab_size=16,
        n_positions=10,
        n_embd=12,
        n_layer=1,
        n_head=2,
        n_inner=48,
        layer_norm_epsilon=0.1,
    )
    return s


def llama():
    s = Suite("llama")

    def case(label, shape, rope_theta, rope_scaling=None, **config):
        kind = "default" if rope_scaling is None else "llama3"
        rope = {"rope_type": kind, "rope_theta": rope_theta, **(rope_scaling or {})}
        model = LlamaForCausalLM(LlamaConfig(**config, rope_parameters=rope, attn_implementation="eager"))
        vocab = config["vocab_size"]
        config["rope_theta"] = rope_theta
        if rope_scaling is not None:
            config["rope_scaling"] = rope_scaling
        s.case(label, config, model, {"ids": (vocab, shape)}, prompt=(vocab, (2, 3), 6))

    sizes = {"max_position_embeddings": 64, "num_hidden_layers": 2}
    case(
        "groups",
        (2, 7),
        10000.0,
        **sizes,
        vocab_size=20,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
    )
    case(
        "one_key_head_tied",
        (1, 10),
        500000.0,
        **sizes,
        vocab_size=17,
        hidden_size=12,
        intermediate_size=20,
        num_attention_heads=3,
        num_key_value_heads=1,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    case(
        "as_many_key_heads_large_eps",
        (3, 5),
        100.0,
        **sizes,
        vocab_size=16,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_key_value_heads=2,
        rms_norm_eps=0.05,
    )
    # Of the four frequencies one is high, one between, and two are low.
    case(
        "scaled_frequencies",
        (2, 16),
        30.0,
        rope_scaling={
            "factor": 6.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        **sizes,
        vocab_size=12,
        hidden_size=16,
        intermediate_size=20,
        num_attention_heads=2,
        num_key_value_heads=1,
        rms_norm_eps=1e-5,
    )
    return s


def bert():
    s = Suite("bert")

    def case(label, inputs, **config):
        model = BertModel(BertConfig(**config, attn_implementation="eager"))

        def call(m, ids, token_type_ids=None, attention_mask=None):
            y = m(ids, token_type_ids=token_type_ids, attention_mask=attention_mask)
            return y.last_hidden_state, y.pooler_output

        s.case(label, config, model, inputs, call)

    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    sizes = {"vocab_size": 20, "max_position_embeddings": 10, "type_vocab_size": 2}
    case(
        "two_blocks",
        {"ids": (20, (2, 6))},
        **sizes,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    case(
        "segments_and_padding",
        {"ids": (20, (3, 5)), "token_type_ids": (2, (3, 5)), "attention_mask": mask},
        **sizes,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
    )
    case(
        "large_eps",
        {"ids": (20, (2, 4)), "token_type_ids": (2, (2, 4))},
        **sizes,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=24,
        layer_norm_eps=0.1,
        pad_token_id=3,
    )
    return s


def vit():
    s = Suite("vit")

    def case(label, batch, num_labels, **config):
        model = ViTForImageClassification(ViTConfig(**config, num_labels=num_labels, attn_implementation="eager"))
        config["num_labels"] = num_labels
        images = (batch, config["num_channels"], *config["image_size"])
        s.case(label, config, model, {"images": images}, call=lambda m, images: (m(images).logits,))

    case(
        "two_blocks",
        2,
        5,
        image_size=[8, 8],
        patch_size=[4, 4],
        num_channels=3,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    case(
        "oblong",
        3,
        3,
        image_size=[6, 4],
        patch_size=[2, 4],
        num_channels=1,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
    )
    case(
        "large_eps",
        2,
        7,
        image_size=[4, 4],
        patch_size=[2, 2],
        num_channels=2,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=24,
        layer_norm_eps=0.1,
    )
    return s


class LanguageModel(nn.Module):
    """PyTorch's example word_language_model, with the batch first."""

    def __init__(self, vocab_size, embedding_dim, hidden_size, num_layers, tie_weights=False):
        super().__init__()
        self.encoder = nn.Embedding(vocab_size, embedding_dim)
        self.rnn = nn.LSTM(embedding_dim, hidden_size, num_layers, batch_first=True)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        if tie_weights:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids, *state):
        return self.decoder(self.rnn(self.encoder(ids))[0])


def lstm():
    s = Suite("lstm")

    def case(label, shape, **config):
        ids = {"ids": (config["vocab_size"], shape)}
        s.case(label, config, LanguageModel(**config), ids, call=lambda m, ids: (m(ids),))

    case("two_layers", (2, 5), vocab_size=14, embedding_dim=6, hidden_size=8, num_layers=2)
    case("tied", (3, 4), vocab_size=12, embedding_dim=8, hidden_size=8, num_layers=2, tie_weights=True)
    case("one_layer", (1, 7), vocab_size=9, embedding_dim=8, hidden_size=5, num_layers=1)
    return s


def mamba():
    s = Suite("mamba")

    def case(label, shape, **config):
        model = MambaForCausalLM(MambaConfig(**config, pad_token_id=0, bos_token_id=0, eos_token_id=0))
        vocab = config["vocab_size"]
        s.case(label, config, model, {"ids": (vocab, shape)}, prompt=(vocab, (2, 3), 6))

    case("two_blocks_tied", (2, 9), vocab_size=20, hidden_size=16, state_size=4, num_hidden_layers=2)
    case(
        "wide_inner",
        (1, 12),
        vocab_size=13,
        hidden_size=8,
        state_size=3,
        num_hidden_layers=2,
        expand=3,
        conv_kernel=2,
        time_step_rank=3,
        tie_word_embeddings=False,
        layer_norm_epsilon=0.1,
    )
    return s


def presets():
    models = {
        "gpt2": (GPT2LMHeadModel, GPT2Config()),
        "bert-base-uncased": (BertModel, BertConfig()),
        "vit-base-patch16-224": (ViTForImageClassification, ViTConfig(num_labels=1000)),
        "TinyLlama-1.1B": (
            LlamaForCausalLM,
            LlamaConfig(
                vocab_size=32000,
                hidden_size=2048,
                intermediate_size=5632,
                num_hidden_layers=22,
                num_attention_heads=32,
                num_key_value_heads=4,
                rms_norm_eps=1e-5,
            ),
        ),
        "Llama-3.2-1B": (
            LlamaForCausalLM,
            LlamaConfig(
                vocab_size=128256,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
            ),
        ),
    }
    models["mamba-130m"] = (MambaForCausalLM, MambaConfig(vocab_size=50280, num_hidden_layers=24))
    lists = {}
    for name, (kind, config) in models.items():
        with torch.device("meta"):
            model = kind(config)
        tensors = named(model, revert_weight_conversion(model, dict(model.named_parameters())))
        lists[name] = {n: list(t.shape) for n, t in sorted(tensors.items())}
        print(f"{name}: {len(lists[name])} tensors, {sum(t.numel() for t in tensors.values())} numbers")
    entry = lambda tensors: ",\n".join(f"  {json.dumps(n)}: {json.dumps(s)}" for n, s in tensors.items())
    text = ",\n".join(f"{json.dumps(name)}: {{\n{entry(tensors)}\n}}" for name, tensors in lists.items())
    (FOLDER / "models-presets.json").write_text(f"{{\n{text}\n}}\n")


MODELS = (gpt2, llama, bert, vit, lstm, mamba)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    for model in MODELS:
        if not sys.argv[1:] or model.__name__ in sys.argv[1:]:
            model().write()
    if not sys.argv[1:] or "presets" in sys.argv[1:]:
        presets()
