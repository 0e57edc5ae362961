"""The frontend: text in and out of the engine, and the HTTP server over it. Imports no torch."""
