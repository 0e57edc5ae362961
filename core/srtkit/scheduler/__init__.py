"""The scheduler: requests in, step plans out, outputs committed. No torch, no text, no HTTP."""
