"""The LiteLLM library, brought in late and kept quiet.

Importing it takes seconds and a hundred megabytes, so it is done only where an upstream needs it, in a thread. Left alone it fetches
price lists from the network, reads a ``.env`` file of the working folder into the environment and logs what it sends; all of that is off.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import os
import threading
import warnings
from typing import Any

from reef.errors import PluginError

INSTALL = "pip install 'reef[litellm]'"
_LOCAL = (
    "LITELLM_LOCAL_MODEL_COST_MAP",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS",
    "LITELLM_LOCAL_BLOG_POSTS",
    "LITELLM_LOCAL_POLICY_TEMPLATES",
)
"""What it would else ask the network for, at its import or later."""
_lock = threading.Lock()
_loaded: list[Any] = []


@functools.cache
def installed() -> bool:
    """Whether it is there; asked without importing it."""
    return importlib.util.find_spec("litellm") is not None


async def library() -> Any:
    """The module, imported in a thread the first time.

    Raises:
        PluginError: it is not installed, or broken.
    """
    return _loaded[0] if _loaded else await asyncio.to_thread(load)


def load() -> Any:
    """The module, imported here and now.

    Raises:
        PluginError: it is not installed, or broken.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_import())
        return _loaded[0]


def _import() -> Any:
    os.environ.update(dict.fromkeys(_LOCAL, "True"))
    os.environ["LITELLM_MODE"] = "PRODUCTION"  # else it loads .env
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # its errors carry parts of requests; ours say what is needed
    # Of the library's own type hints, and for its authors.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"pydantic\._internal\._generate_schema")
    try:
        import litellm
    except ImportError as error:
        raise PluginError(f"LiteLLM cannot be loaded: {error}", hint=INSTALL) from None
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    litellm.use_chat_completions_url_for_anthropic_messages = True  # every such server has those
    for hooks in ("callbacks", "success_callback", "failure_callback", "input_callback", "service_callback"):
        setattr(litellm, hooks, [])
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # its import sets them anew
    return litellm
