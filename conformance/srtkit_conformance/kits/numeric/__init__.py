"""What kits of several kinds share: gates of numbers, watched memory, pairs of cases, refusals. Knows no kind."""
