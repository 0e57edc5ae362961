"""Wrong and legal recurrent backends. `wrap` and `token_by_token` are what they share."""

MODULES = ("variants", "numbers", "states", "promises")
