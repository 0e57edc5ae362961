"""A made-up trace of chats, batch jobs and agents, its replay through a prefix cache, and the best possible reuse."""
