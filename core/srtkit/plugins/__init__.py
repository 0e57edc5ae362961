"""Discovery, checks and the wiring plan. Start reading in `wiring`.

`registry` reads metadata and imports no plugin; `loading` imports one plugin and checks it; `wiring`
decides which ones a run uses; `loaded` is what the engine gets. Knows no kind's meaning.
"""
