"""Which of aiter's kernels takes which rows of which layers, by what each can do. Data and pure functions, no torch.

Limits were read from the sources of amd-aiter 0.1.7.post2.dev18 and of its head of 2026-08-22: a call beyond them is
refused by aiter at best, ends the process, or gives wrong numbers. So it is decided here, before any kernel is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from srtkit.spec.attention import AttentionSpec

FP8 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}
"""Architecture → its fp8."""
DTYPES = frozenset({"bfloat16", "float16"})
PAGE_SIZES = (16, 64, 1)
HEAD_DIMS = frozenset({*range(8, 257, 8), 512})
LATENT = (512, 64)
"""Rank and rope part of the one latent layer that there are kernels for."""
MAX_GQA_RATIO = 128
MAX_Q_LEN = 32
"""Longest uniform query of leading rows. The extend kernel masks drafts by tiles of at least so many; a tile of which
a draft sees nothing gives NaN."""

DECODE_HEAD_DIMS = frozenset({64, 128})
DECODE_RATIO = 16
"""`paged_attention_ragged` takes query heads by 16, and forgets the rest of a larger number that is no multiple."""
DECODE_UNIT = 16
"""It takes blocks of up to 32 tokens; 16 divides all pages but those of one token."""
DECODE_PART = 256
"""Keys that one of its programs reads."""
PREFILL_HEAD_DIM = 128
"""`mha_batch_prefill_func` of 0.1.7 is compiled for heads of 128, padded to it where they are smaller."""
PREFILL_BYTES = 1 << 31
"""It computes offsets in a plane in 32 bits. Layers with larger planes go to `unified_attention`."""
WIDE = 256
"""Larger heads need a version after 0.1.7: its `unified_attention` has no tiles for them."""
MLA_QUERIES = 4
"""`mla_decode_fwd` gives wrong results for longer ones (aiter #5679)."""
MLA_HEADS = 16
"""Its kernels are for 16 heads; multiples of it up to 128 are folded where there is one query a row."""

VEC_HEAD_DIM, VEC_PAGE, VEC_RATIO = 128, 16, 16
"""All that `pa_fwd_asm` has kernels for, up to so many query heads on a KV head."""
VEC_PAGES = 1 << 16
"""Pages of a layer beyond which it gives wrong results without a word (aiter #3062)."""

Kernel = Literal["decode", "prefill", "unified", "extend", "drafts", "mla", "asm"]
"""`paged_attention_ragged`, `mha_batch_prefill_func`, `unified_attention`, `extend_attention_fwd`, `unified_attention`
over one row a draft, `mla_decode_fwd`, `pa_fwd_asm`."""


@dataclass(frozen=True)
class Routes:
    """The kernel of leading rows of one query, of several, of several in a tree, and of all other rows."""

    one: Kernel
    chain: Kernel
    tree: Kernel
    rest: Kernel

    def leading(self, q_len: int, *, tree: bool) -> Kernel:
        """Of leading rows. A tree of one draft is no tree."""
        if q_len == 1:
            return self.one
        if self.chain == "mla" and q_len > MLA_QUERIES:
            return "extend"
        return self.tree if tree else self.chain


def routes(spec: AttentionSpec) -> Routes:
    """The kernels of a spec that is covered."""
    if spec.mla is not None:
        one: Kernel = "mla" if spec.dtype == "bfloat16" else "extend"
        return Routes(one, one if heads_padded(spec.q_heads) == MLA_HEADS else "extend", "extend", "extend")
    plain = not spec.features & {"window", "sinks"}
    decode = plain and spec.head_dim in DECODE_HEAD_DIMS and spec.q_heads // spec.kv_heads <= DECODE_RATIO
    same = plain and spec.kv_dtype == spec.dtype
    return Routes(
        one="decode" if decode else "unified",
        chain="unified",
        tree="extend" if same and spec.head_dim <= WIDE else "drafts",
        rest="prefill" if same and spec.head_dim <= PREFILL_HEAD_DIM else "unified",
    )


def heads_padded(heads: int) -> int:
    """The next multiple of the heads that `mla_decode_fwd` has kernels for."""
    return -(-heads // MLA_HEADS) * MLA_HEADS


def why_not(spec: AttentionSpec, fp8: str | None, *, newer: bool) -> str:
    """What aiter lacks for a spec that is declared: empty, or one sentence.

    `fp8`: the architecture's; `newer`: an aiter after 0.1.7.
    """
    if spec.kv_dtype not in (spec.dtype, fp8):
        return f"keeps KV in the model's {spec.dtype}, not in {spec.kv_dtype}"
    if spec.mla is not None:
        if (spec.mla.rank, spec.mla.rope) != LATENT:
            return f"has no kernel for latents of size {spec.mla.rank} with rope parts of size {spec.mla.rope}"
        if (spec.kv_heads, spec.head_dim, spec.v_head_dim) != (1, sum(LATENT), LATENT[0]):
            return "takes MLA in absorbed form: one KV head, head size rank + rope, value size rank"
        others = sorted(spec.features - {"mla"})
        return f"has no kernel for MLA with {', '.join(others)}" if others else ""
    if spec.head_dim not in HEAD_DIMS or spec.v_head_dim != spec.head_dim:
        return f"has no kernel for keys of size {spec.head_dim} with values of size {spec.v_head_dim}"
    if spec.head_dim > WIDE and not newer:
        return f"has a kernel for head size {spec.head_dim} only in versions after 0.1.7"
    return ""
