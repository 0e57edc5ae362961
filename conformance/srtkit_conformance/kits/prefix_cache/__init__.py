"""What the checks of prefix caches share: overlapping prompts, a ledger of pages, and a caller that plays the scheduler."""
