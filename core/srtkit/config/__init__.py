"""Settings, model sources, and how they become a run's configuration. The only reader of the environment.

Import from the modules: `settings` needs pydantic, `hints` does not.
"""
