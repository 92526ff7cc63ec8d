"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8900"
Url = Annotated[str, typer.Option("--url", envvar="REEF_URL", help="The gateway.")]
Scenario = Annotated[str, typer.Option("--scenario", "-s", envvar="REEF_SCENARIO", help="The workload.")]
