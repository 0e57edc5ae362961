"""From a prepared run to what clients can know of its model."""

import time

from srtkit.config.prepare import Run
from srtkit.serve.prompts import ServedModel
from srtkit.text.chat import ChatTemplate
from srtkit.text.tokenizer import Tokenizer


def serve_model(run: Run) -> ServedModel:
    """Build tokenizer and chat template; collect names, limits and defaults."""
    settings, data = run.settings.model, run.description.tokenizer
    tokenizer = Tokenizer(data) if data is not None else None
    generation = run.description.generation if settings.generation_config == "auto" else {}
    template = data.chat_template if data is not None else None
    bos, eos = (tokenizer.bos_token, tokenizer.eos_token) if tokenizer is not None else ("", "")
    # All ids that end a text: of generation_config.json, else of config.json, and the tokenizer's.
    named = generation.get("eos_token_id", run.description.config.get("eos_token_id"))
    listed = named if isinstance(named, list | tuple) else [] if named is None else [named]
    return ServedModel(
        name=settings.name or settings.source.rstrip("/").rpartition("/")[2],
        aliases=tuple(dict.fromkeys(("default", settings.source))),
        max_context=run.config.limits.max_context,
        tokenizer=tokenizer,
        chat=ChatTemplate(template, bos, eos),
        generation=generation,
        eos_ids=tuple(dict.fromkeys((*listed, *(tokenizer.eos_ids if tokenizer is not None else ())))),
        vocab_size=run.config.model.vocab_size,
        created=int(time.time()),
    )
