"""One exception tree. Each error knows its HTTP status and a hint that tells its reader what to try next."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar


class ReefError(Exception):
    """Something went wrong that a person can act on.

    Args:
        message: what happened and to what.
        hint: what to try; shown by the CLI and sent as ``hint`` in JSON errors.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "reef_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint)

    def body(self) -> dict[str, dict[str, Any]]:
        """The JSON body of the HTTP answer, in the OpenAI error shape with a ``hint``."""
        return {"error": {"type": self.type, "message": self.message, "hint": self.hint}}

    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer, beside those every answer has."""
        return {}


def _rebuild(kind: type[ReefError], message: str, hint: str) -> ReefError:
    return kind(message, hint=hint)


class InvalidRequest(ReefError, ValueError):
    """The caller sent something malformed."""

    status = 400
    type = "invalid_request_error"


class Unprocessable(InvalidRequest):
    """What the caller sent is well-formed, and something in it is not what it must be; the message names the field."""

    status = 422


class InvalidLine(Unprocessable):
    """A line of a batch cannot be taken. Nothing of the batch is stored.

    Args:
        number: which one.
    """

    def __init__(self, number: int, message: str, *, hint: str = "") -> None:
        super().__init__(f"line {number}: {message}", hint=hint)
        self.number = number
        self._told = message

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), hint=self.hint), (self.number, self._told)


class Unauthorized(ReefError, PermissionError):
    """No token, or one that is not known."""

    status = 401
    type = "authentication_error"

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class Forbidden(ReefError, PermissionError):
    """A known token without the scope this needs."""

    status = 403
    type = "permission_error"


class NotFound(ReefError, LookupError):
    """The named scenario, record, release, adapter … does not exist."""

    status = 404
    type = "not_found_error"


class Gone(NotFound):
    """A record whose content retention dropped.

    Args:
        kept: what is still known of it; beside ``error`` in the JSON body.
    """

    status = 410
    type = "gone_error"

    def __init__(self, message: str, *, hint: str = "", kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kept = dict(kept or {})

    def body(self) -> dict[str, dict[str, Any]]:
        return {**super().body(), "kept": self.kept}

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), hint=self.hint, kept=self.kept), (self.message,)


class MethodNotAllowed(ReefError):
    """The path exists, but not for this method."""

    status = 405
    type = "method_not_allowed_error"


class Conflict(ReefError):
    """The same id with other content, or a head that moved meanwhile."""

    status = 409
    type = "conflict_error"


class StaleHead(Conflict):
    """A publisher expected another head than the chain has. Nothing was changed."""

    type = "stale_head_error"


class TooLarge(ReefError):
    """A body or tree beyond its bound."""

    status = 413
    type = "too_large_error"


class HeadTooLarge(TooLarge):
    """The head of a request is beyond its bound (RFC 6585)."""

    status = 431


class TooManyRequests(ReefError):
    """A token asks for more than its limits allow.

    Args:
        retry_after_s: when to come again; sent as ``Retry-After``.
    """

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_s)}

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), hint=self.hint, retry_after_s=self.retry_after_s), (self.message,)


class UpstreamError(ReefError, ConnectionError):
    """The upstream could not be reached, or broke."""

    status = 502
    type = "upstream_error"


class UpstreamTimeout(UpstreamError, TimeoutError):
    """The upstream did not answer in time."""

    status = 504
    type = "upstream_timeout_error"


class EngineError(UpstreamError):
    """The managed engine refused an administrative call, or could not be reached for one."""

    type = "engine_error"


class EngineTimeout(EngineError, TimeoutError):
    """The engine did not answer an administrative call in time."""

    status = 504


class EngineNotReady(UpstreamError):
    """The managed engine is being started, or is down for now.

    Args:
        retry_after_s: when to come again; sent as ``Retry-After``.
    """

    status = 503
    type = "engine_not_ready_error"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: int = 5) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_s)}

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), hint=self.hint, retry_after_s=self.retry_after_s), (self.message,)


class StorageError(ReefError, OSError):
    """The store could not keep a record."""

    status = 507
    type = "storage_error"


class ConfigError(ReefError, ValueError):
    """serve.yaml or a command line option is wrong."""

    type = "config_error"


class PluginError(ReefError, ImportError):
    """A plugin is missing, broken or not what it claims to be."""

    type = "plugin_error"


class InvalidTree(InvalidRequest):
    """A harness tree that may not be stored or served."""

    type = "invalid_tree_error"


class WeightSyncError(ReefError, RuntimeError):
    """New weights did not reach an engine, or it serves others than it should. What served before goes on serving."""

    status = 502
    type = "weight_sync_error"


class WeightSyncTimeout(WeightSyncError, TimeoutError):
    """A rank or an engine did not answer within the deadline of a sync; the message names it."""

    status = 504
    type = "weight_sync_timeout_error"


class ProposalError(ReefError):
    """A proposer gave no usable candidate within its retries."""

    type = "proposal_error"


class SandboxError(ReefError, OSError):
    """An episode could not be started in its sandbox."""

    type = "sandbox_error"


class TrainingError(ReefError):
    """A trainer made no candidate: it crashed, was ended, or its loss came to nothing. The parent is as it was."""

    type = "training_error"


class NothingLearned(TrainingError):
    """Nothing of a batch can be learned from: no sample carries a signal, or a number was not finite. The same again would end the same."""

    type = "nothing_learned_error"


class TrainingTimeout(TrainingError, TimeoutError):
    """A trainer did not end in time and was killed."""

    type = "training_timeout_error"


class GraderFault(ReefError, OSError):
    """A grader could not do its work this time, whatever the outcome it looked at: a fault of the infrastructure."""

    type = "grader_fault"
