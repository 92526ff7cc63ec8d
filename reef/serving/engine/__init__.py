"""The managed engine: a vLLM server that Reef starts, watches and starts again, or one that runs already and is only watched.

``command`` knows the flags and the environment by machine, ``guard`` holds the server's processes together so that none outlives us,
``watch`` starts and watches (``python -m reef.serving.engine``, a child of the supervisor), ``notes`` is what it writes down for
`reef status` and for the gateway, and ``client`` makes the administrative calls. Requests reach the engine as the upstream ``engine``, of
kind ``vllm``. Which weights it serves is decided elsewhere (:mod:`reef.serving.sync`).
"""
