"""What the checks of transports share: both sides of a run, threads with a time limit, and real child processes."""
