"""Tokenizers of other forms as the text of tokenizer.json, for authors of srtkit model loaders.

A library without an entry point: a loader requires it and calls it from `TokenizerData.json`. No torch, no numpy.
"""

from srtkit_plugin_tokenizer_forms.finish import with_listed_tokens
from srtkit_plugin_tokenizer_forms.gguf import GgufVocab, from_gguf
from srtkit_plugin_tokenizer_forms.sentencepiece import from_sentencepiece

__all__ = ["GgufVocab", "from_gguf", "from_sentencepiece", "with_listed_tokens"]
