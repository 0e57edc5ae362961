"""Backends that compute something else: scale, masks, heads, features, dtypes. One fault each."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionDescriptor,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.attention.row_by_row import RowByRow
from srtkit_conformance.mutants.attention.wrap import Call, Wrapped, WrappedPlan, respecified, wrapped


@mutant(
    "scale_over_d",
    of="torch",
    sentence="the scale is 1 / D in place of 1 / sqrt(D)",
    killed_by=("attention.numerics.small", "attention.numerics.scale"),
)
def scale_over_d(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Visible even with inputs of standard deviation 0.1."""
    return respecified(descriptor, lambda spec: replace(spec, scale=1 / spec.head_dim))


@mutant("scale_one_percent", of="torch", sentence="the scale is 1 % too large", killed_by=("attention.numerics.unit",))
def scale_one_percent(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Hidden by inputs of standard deviation 0.1."""
    return respecified(descriptor, lambda spec: replace(spec, scale=spec.scale * 1.01))


@mutant(
    "own_scale",
    of="torch",
    sentence="the scale is 1 / sqrt(D) whatever the spec says",
    killed_by=("attention.numerics.scale",),
)
def own_scale(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for most models."""
    return respecified(descriptor, lambda spec: replace(spec, scale=spec.head_dim**-0.5))


@mutant("window_plus_one", of="torch", sentence="the window is W + 1 tokens", killed_by=("attention.features.window",))
def window_plus_one(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Counts the tokens before, not the token itself."""
    return respecified(descriptor, lambda spec: replace(spec, window=spec.window + (spec.window > 0)))


@mutant(
    "window_ignored",
    of="torch",
    sentence="all earlier tokens are visible whatever the window",
    killed_by=("attention.features.window", "attention.memory.before_window"),
    note="one token too many or all of them: every windowed step shows both",
)
def window_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Reads pages that may have been freed, too."""
    return respecified(descriptor, lambda spec: replace(spec, window=0))


@mutant("soft_cap_ignored", of="torch", sentence="scores are not capped", killed_by=("attention.features.soft_cap",))
def soft_cap_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Hidden by small inputs."""
    return respecified(descriptor, lambda spec: replace(spec, soft_cap=0.0))


@mutant("sinks_ignored", of="torch", sentence="sinks are ignored", killed_by=("attention.features.sinks",))
def sinks_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """In out and in lse."""
    return respecified(descriptor, lambda spec: replace(spec, sinks=False))


@mutant("always_causal", of="torch", sentence="the mask is causal always", killed_by=("attention.features.non_causal",))
def always_causal(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for every decoder."""
    return respecified(descriptor, lambda spec: replace(spec, causal=True))


class ShiftedMask(RowByRow):
    """The last visible token of each query of several stands `shift` later."""

    shift = 0

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Each query of several."""
        see = super().visible(batch, row, tokens, context)
        n_query = len(see)
        if n_query == 1 or batch.tree is not None or not self.spec.causal:
            return see
        key = torch.arange(context)
        query = key[context - n_query :, None]
        shifted = (key <= query + self.shift) & (query - key < (self.spec.window or context + 1))
        shifted[~shifted.any(1)] = see[~shifted.any(1)]
        return shifted


class FutureToken(ShiftedMask):
    """Causal + 1."""

    shift = 1


class WithoutItself(ShiftedMask):
    """Causal - 1."""

    shift = -1


@mutant(
    "causal_plus_one",
    of="torch",
    sentence="a prompt's tokens see the token after them",
    killed_by=("attention.steps.chunks", "attention.numerics.unit"),
)
def causal_plus_one(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The last token is right."""
    return wrapped(descriptor, FutureToken)


@mutant(
    "causal_minus_one",
    of="torch",
    sentence="a prompt's tokens do not see themselves",
    killed_by=("attention.numerics.unit", "attention.steps.uniform"),
    note="the mask's other side: every step of several queries shows both",
)
def causal_minus_one(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Decode is right."""
    return wrapped(descriptor, WithoutItself)


class TopLeft(RowByRow):
    """Queries count from the row's first token."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Rows of several queries."""
        see = super().visible(batch, row, tokens, context)
        n_query = len(see)
        if n_query == 1 or batch.tree is not None or not self.spec.causal:
            return see
        return torch.arange(context) <= torch.arange(n_query)[:, None]


@mutant(
    "prefix_offset_ignored",
    of="torch",
    sentence="a chunk is masked as if it began at position 0",
    killed_by=("attention.steps.chunks",),
)
def prefix_offset_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Prompts without a cached prefix are right."""
    return wrapped(descriptor, TopLeft)


class DropsLastKey(RowByRow):
    """The decode path ends one token early."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Rows of one query."""
        see = super().visible(batch, row, tokens, context)
        if len(see) == 1 and see.sum() > 1:
            see[0, -1] = False
        return see


@mutant(
    "last_key_dropped",
    of="torch",
    sentence="a decode row does not see the token it has just stored",
    killed_by=("attention.steps.one_token", "attention.numerics.unit"),
)
def last_key_dropped(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Context taken before the step."""
    return wrapped(descriptor, DropsLastKey)


class DropsInRest(RowByRow):
    """Two paths for one kind of row."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Rows of one query among the rest."""
        see = super().visible(batch, row, tokens, context)
        if len(see) == 1 and row >= batch.leading and see.sum() > 1:
            see[0, -1] = False
        return see


@mutant(
    "one_token_in_rest",
    of="torch",
    sentence="rows of one query are right as leading rows only",
    killed_by=("attention.steps.one_token",),
)
def one_token_in_rest(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The prefill path, given a row of one token."""
    return wrapped(descriptor, DropsInRest)


class SeesAllDrafts(RowByRow):
    """Leading rows are taken for rows of one query each."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Leading rows without a tree."""
        see = super().visible(batch, row, tokens, context)
        return torch.ones_like(see) if row < batch.leading and batch.tree is None and not self.spec.window else see


@mutant(
    "uniform_not_causal",
    of="torch",
    sentence="the queries of a leading row all see each other",
    killed_by=("attention.steps.uniform", "attention.capture.uniform"),
)
def uniform_not_causal(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Decode with one query is right."""
    return wrapped(descriptor, SeesAllDrafts)


class Interleaved(RowByRow):
    """h % kv_heads."""

    def kv_heads(self, heads: int) -> Tensor:
        """Interleaved."""
        return torch.arange(heads) % self.spec.kv_heads


@mutant(
    "heads_interleaved",
    of="torch",
    sentence="query head h reads KV head h % kv_heads",
    killed_by=("attention.numerics.head_ratios",),
)
def heads_interleaved(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right with one KV head, and with one query head each."""
    return wrapped(descriptor, Interleaved)


class WholeTiles(Wrapped):
    """Elements past the last multiple of 64 are lost."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """From q."""
        whole = how.q.shape[-1] // 64 * 64
        q = torch.cat((how.q[..., :whole], torch.zeros_like(how.q[..., whole:])), -1)
        super().call(plan, layer, replace(how, q=q))


@mutant(
    "head_tail_lost",
    of="torch",
    sentence="elements of a head past the last multiple of 64 do not count",
    killed_by=("attention.numerics.head_sizes",),
)
def head_tail_lost(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for 64, 128, 256, and for latents of 576."""
    return wrapped(descriptor, WholeTiles)


class BrainProbabilities(RowByRow):
    """Probabilities in bfloat16 for float16."""

    def weights(self, weights: Tensor) -> Tensor:
        """Rounded."""
        return weights.bfloat16().float() if self.spec.dtype == "float16" else weights


@mutant(
    "p_in_bfloat16",
    of="torch",
    sentence="probabilities of a float16 layer are rounded to bfloat16",
    killed_by=("attention.numerics.float16",),
)
def p_in_bfloat16(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Three to five times the error."""
    return wrapped(descriptor, BrainProbabilities)


class ShortFloats(RowByRow):
    """Inputs of float32 layers lose bits, as with tf32."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Rounded to ten bits."""
        return super().scores(q.half().float() if self.spec.dtype == "float32" else q, k)


@mutant(
    "float32_in_tf32",
    of="torch",
    sentence="q of a float32 layer is rounded to ten bits",
    killed_by=("attention.numerics.float32",),
)
def float32_in_tf32(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Undeclared."""
    return wrapped(descriptor, ShortFloats)


class RoundedParts(RowByRow):
    """Tiles of four keys whose sum is kept in the dtype of out."""

    def attend_row(self, q: Tensor, k: Tensor, v: Tensor, see: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result of each four keys is rounded to bfloat16."""
        if self.spec.dtype != "bfloat16":
            return super().attend_row(q, k, v, see, sinks)
        out, lse = super().attend_row(q, k, v, see, sinks)
        scores = self.mask(self.scores(q.float(), k), see)
        weights = torch.exp(scores - lse.T[..., None])
        values = v[:, self.kv_heads(q.shape[1])]
        total = torch.zeros_like(out, dtype=torch.bfloat16)
        for part, some in zip(torch.split(weights, 4, -1), torch.split(values, 4), strict=True):
            total += torch.einsum("hnm,mhd->nhd", part, some).bfloat16()
        return total.float(), lse


@mutant(
    "sums_in_bfloat16",
    of="torch",
    sentence="a bfloat16 layer adds up its result in bfloat16",
    killed_by=("attention.numerics.bfloat16",),
)
def sums_in_bfloat16(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Sums want float32."""
    return wrapped(descriptor, RoundedParts)


class LosesSplit(RowByRow):
    """Splits of 256 keys; the first key of each but the first is lost."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Long rows."""
        see = super().visible(batch, row, tokens, context)
        if context > 256:
            see[:, 256 : context - 1 : 256] = False
        return see


@mutant(
    "split_border_lost",
    of="torch",
    sentence="contexts beyond 256 tokens lose a key at each split",
    killed_by=("attention.numerics.long",),
)
def split_border_lost(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Short rows are right."""
    return wrapped(descriptor, LosesSplit)


class FullTile(RowByRow):
    """Chunks of one tile of 64 queries."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """The last query loses the token before it."""
        see = super().visible(batch, row, tokens, context)
        if len(see) == 64 and context > 64:
            see[-1, -2] = False
        return see


@mutant(
    "full_tile_wrong",
    of="torch",
    sentence="the last query of a chunk of exactly 64 tokens does not see the token before it",
    killed_by=("attention.steps.any",),
)
def full_tile_wrong(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A border that no directed check has."""
    return wrapped(descriptor, FullTile)


class NoMaximum(RowByRow):
    """exp(score), which overflows as float16 does."""

    def attend_row(self, q: Tensor, k: Tensor, v: Tensor, see: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Nothing is subtracted first."""
        weights = torch.exp(self.mask(self.scores(q.float(), k), see))
        weights = weights.masked_fill(weights > torch.finfo(torch.float16).max, torch.inf)
        total = weights.sum(-1) + (0.0 if sinks is None else sinks.exp()[:, None])
        out = torch.einsum("hnm,mhd->nhd", weights / total[..., None], v[:, self.kv_heads(q.shape[1])])
        return out, total.log().T


@mutant(
    "maximum_not_subtracted",
    of="torch",
    sentence="scores are exponentiated without subtracting the largest, in the range of float16",
    killed_by=("attention.numerics.large",),
)
def maximum_not_subtracted(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for inputs of standard deviation 1."""
    return wrapped(descriptor, NoMaximum)


class BaseTwo(Wrapped):
    """log2 where ln is meant."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """lse in base 2."""
        super().call(plan, layer, how)
        if how.lse is not None:
            batch, _ = plan.filled
            border = int(batch.host_q[: batch.leading].sum())
            begin = border if how.rows is Rows.REST else 0
            end = border if how.rows is Rows.LEADING else batch.tokens
            how.lse[begin:end] /= math.log(2)


@mutant("lse_base_two", of="torch", sentence="lse is in base 2", killed_by=("attention.refusals.lse",))
def lse_base_two(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """What most kernels keep inside."""
    return wrapped(descriptor, BaseTwo)


class SinklessSums(RowByRow):
    """out with sinks, lse without."""

    def attend_row(self, q: Tensor, k: Tensor, v: Tensor, see: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Two passes."""
        out, _ = super().attend_row(q, k, v, see, sinks)
        _, lse = super().attend_row(q, k, v, see, None)
        return out, lse


@mutant(
    "lse_without_sinks",
    of="torch",
    sentence="lse leaves the sinks out",
    killed_by=("attention.features.sinks",),
    note="sinks_ignored in lse alone: the same steps show it",
)
def lse_without_sinks(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Shows in a merge only."""
    return wrapped(descriptor, SinklessSums)


class NoTree(Wrapped):
    """Drafts are a chain."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Without the mask."""
        return replace(batch, tree=None), view


@mutant(
    "tree_ignored", of="torch", sentence="drafts are masked as a chain", killed_by=("attention.features.tree_mask",)
)
def tree_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The feature is declared."""
    return wrapped(descriptor, NoTree)


class OneWord(Wrapped):
    """32 drafts at most."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """The second word on is zero."""
        if batch.tree is None:
            return batch, view
        bits = batch.tree.bits.clone()
        bits[..., 1:] = 0
        return replace(batch, tree=replace(batch.tree, bits=bits)), view


@mutant(
    "tree_one_word",
    of="torch",
    sentence="only the first word of a tree mask is read",
    killed_by=("attention.features.tree_words",),
)
def tree_one_word(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right up to 32 drafts."""
    return wrapped(descriptor, OneWord)


class NoRope(RowByRow):
    """The latent alone is the key."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Without the rope part."""
        mla = self.spec.mla
        return super().scores(q, k) if mla is None else super().scores(q[..., : mla.rank], k[..., : mla.rank])


@mutant(
    "rope_part_ignored",
    of="torch",
    sentence="scores of a latent layer leave the rope part out",
    killed_by=("attention.features.mla",),
)
def rope_part_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Other layers are right."""
    return wrapped(descriptor, NoRope)


def one_key_scale(spec: AttentionSpec, layer: LayerHandle) -> LayerHandle:
    """The first head's scale for all."""
    if layer.scales is None or spec.mla is not None:
        return layer
    return replace(layer, scales={**layer.scales, "k": layer.scales["k"].reshape(-1)[0]})


class OneScale(Wrapped):
    """One scale a layer: stored so, and read so by attend, but not as the contract says."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """With the first head's scale."""
        super().call(plan, one_key_scale(self.spec, layer), how)


@mutant(
    "fp8_one_scale",
    of="torch",
    sentence="attend reads K of all heads with the first head's scale",
    killed_by=("attention.features.fp8_kv",),
)
def fp8_one_scale(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right where a layer has one scale."""
    return wrapped(descriptor, OneScale)


class Overflows(Wrapped):
    """No saturation."""

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """What exceeds the largest value becomes NaN, as in a bare cast."""
        if self.spec.kv_dtype.startswith("float8") and layer.scales is not None:
            largest = torch.finfo(next(iter(layer.planes.values())).dtype).max
            k, v = (
                x.masked_fill((x / layer.scales[name].reshape(-1, *(1,) * (x.dim() - 2))).abs() > largest, torch.nan)
                for name, x in (("k", k), ("v", v))
            )
        super().store(plan, layer, k, v)


@mutant(
    "fp8_overflows",
    of="torch",
    sentence="values beyond the largest fp8 value are stored as NaN",
    killed_by=("attention.features.fp8_error",),
)
def fp8_overflows(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Where the scale is too small."""
    return wrapped(descriptor, Overflows)
