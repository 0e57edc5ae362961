"""One script a claim; README.md lists them. `python -m bench` shows and runs them."""
