"""Set-up for recurrent backends: cases, an independent solution of them, and a small world of sequences in slots."""
