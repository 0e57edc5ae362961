"""What the checks of prefix caches share: overlapping prompts, a ledger of pages, a caller."""
