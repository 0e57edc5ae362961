"""What the checks of graph runners share: programs with a reference in numpy, and a runner over them."""
