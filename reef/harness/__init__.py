"""The harness: everything around the model that an agent is made of, as plain files, and the means to run it.

``tree`` checks and loads a harness, ``adapter`` is the contract for one coding agent, ``install`` brings that agent's pinned CLI to this
machine, ``sandbox`` (with ``relay``) runs a command where it can do no harm, and ``episode`` puts these together: one headless run in a
throw-away root. Called by evaluation, which judges, by the gateway, which serves harnesses to users, and by Cordis, which edits them.
Not here: the adapters themselves (plugins), nor the client that is installed on a user's machine (``harness_templates/client``).
"""
