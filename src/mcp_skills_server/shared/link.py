"""Connection to Redis with a circuit breaker, which logs each time that it opens or closes.

A thread holds a subscription, which shows at any time whether Redis responds. While the breaker is
open, requests that need Redis fail at once, and only that thread retries.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.errors import REPEATS, RequestError, clipped
from mcp_skills_server.model import printable
from mcp_skills_server.shared.address import ANSWER_S, RedisSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_CONNECTIONS: Final = 16
_WHOLE_S: Final = 2 * ANSWER_S
"""Timeout of one script or message, however slowly its bytes arrive."""
_RETRY_S: Final = 1.0
_STOP_S: Final = 1.0
AWAY: Final = (
    "the shared state of this server's replicas cannot be reached now (Redis does not answer); "
    "try again later"
)
REFUSED: Final = (
    "the shared state of this server's replicas cannot be written now (Redis refuses it); "
    "try again later"
)


class SharedError(RequestError):
    """Shared data is unavailable now. The message is for clients; the log has the reason."""


class ChangedMeanwhileError(SharedError):
    """Another replica has written the record since it was read (a failed compare-and-set)."""


class FullError(SharedError):
    """The maximum number of records is reached, and the owner has none to evict."""


class Link:
    """Connection to Redis with a circuit breaker."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings: Final = settings
        self._lock = threading.Lock()
        self._trouble = ""
        """Reason why Redis cannot be used, for the operator; empty while the breaker is closed."""
        self._client: tuple[asyncio.AbstractEventLoop, Redis] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._publisher: Any = None
        self._stopped = False

    @property
    def is_up(self) -> bool:
        """Tell whether the last request to Redis succeeded, or there was none."""
        return not self._trouble

    @property
    def state(self) -> str:
        """Return the state of the connection, in one line for the operator."""
        return f"Redis at {self.settings.shown}: {self._trouble or 'connected'}"

    def key(self, *parts: str) -> str:
        """Return the key of these parts, which contain no client's text."""
        return self.settings.prefix + ":".join(parts)

    # Use

    async def run(self, what: str, script: str, keys: Sequence[str], given: Sequence[Any]) -> Any:
        """Run a Lua script within two seconds, or raise SharedError. `what` names it in the log."""
        if self._trouble:
            raise SharedError(AWAY)
        if self._client is None:  # the import takes half a second: do not block the event loop
            await asyncio.to_thread(import_module, "redis.asyncio")
        from redis.exceptions import ResponseError

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            self._client = loop, self.settings.client(_CONNECTIONS)
        try:
            async with asyncio.timeout(_WHOLE_S):
                return await self._client[1].register_script(script)(keys, given)
        except ResponseError as error:
            self._log_refusal(what, error)
            raise SharedError(REFUSED) from None
        except Exception as error:  # a server that is no Redis may cause any error
            self._failed(error)
            raise SharedError(AWAY) from None

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if self._client is not None and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
            self._client = None

    def _log_refusal(self, what: str, error: Exception) -> None:
        logger.warning("%s: refuses %s: %s", self.settings.shown, what, _line(error), extra=REPEATS)

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            if self._trouble or self._stopped:
                return
            self._trouble = _reason(error, self.settings)
        text = "%s: %s; requests that need it are refused until it answers; reads go on"
        logger.warning(text, self.settings.shown, self._trouble)

    def _answers(self) -> None:
        with self._lock:
            was, self._trouble = self._trouble, ""
        if was:
            logger.warning("%s: answers again", self.settings.shown)

    # The thread

    def start(self, on_message: Callable[[bytes], None], on_reconnect: Callable[[], None]) -> None:
        """Start the thread that subscribes and reconnects until `stop`; returns at once.

        Its event loop calls `on_message` with each message, which any program may have written, and
        `on_reconnect` when messages may have been missed.
        """
        self._on_message, self._on_reconnect = on_message, on_reconnect
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._watch()), name="skills-redis", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Unsubscribe, and end the thread."""
        self._stopped = True
        if self._watching is not None:
            self.call_soon(self._watching.cancel)
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def call_soon(self, work: Callable[..., object], *arguments: object) -> None:
        """Schedule a call in the link's thread, from any thread; a no-op before its start."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(work, *arguments)

    async def publish(self, message: str) -> None:
        """Publish a message to the other replicas; call it in the link's thread.

        An unsent message is lost; `on_reconnect` is called after the reconnection.
        """
        if self._publisher is not None and not self._trouble:
            from redis.exceptions import ResponseError

            try:
                async with asyncio.timeout(_WHOLE_S):
                    await self._publisher.publish(self.key("changes"), message)
            except ResponseError as error:
                self._log_refusal("a change message", error)
            except Exception as error:
                self._failed(error)

    async def _watch(self) -> None:
        self._loop, self._watching = asyncio.get_running_loop(), asyncio.current_task()
        client: Any = self.settings.client(3)  # one connection to subscribe, two to publish
        self._publisher = client
        missed = False
        try:
            while not self._stopped:
                try:
                    async with client.pubsub() as pubsub:
                        await self._listen(pubsub, missed=missed)
                except Exception as error:  # a server that is no Redis may cause any error
                    self._failed(error)
                missed = True
                await asyncio.sleep(_RETRY_S)
        except asyncio.CancelledError:
            pass  # by `stop`
        finally:
            await self._end(client)

    async def _end(self, client: Redis) -> None:
        """Cancel the other tasks, which could reconnect, then close the connections."""
        self._publisher = None
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with suppress(Exception):
            await client.aclose()

    async def _listen(self, pubsub: Any, *, missed: bool) -> None:
        """Dispatch messages until the connection ends or a ping times out."""
        async with asyncio.timeout(_WHOLE_S):
            await pubsub.subscribe(self.key("changes"))
            message = None
            while message is None or message["type"] != "subscribe":
                message = await pubsub.get_message(timeout=ANSWER_S)
        self._answers()
        if missed:
            self._on_reconnect()
        is_pinged = False
        while True:
            message = await pubsub.get_message(timeout=ANSWER_S)
            if message is not None:
                is_pinged = False
                # The client library subscribes again by itself after a lost connection.
                if self._trouble or message["type"] == "subscribe":
                    self._answers()
                    self._on_reconnect()
                if message["type"] == "message":
                    self._on_message(message["data"])
            elif is_pinged:
                raise TimeoutError
            else:
                await pubsub.ping()
                is_pinged = True


def _line(error: BaseException) -> str:
    """Return the message of an error on one line of bounded length."""
    return clipped(printable(" ".join(str(error).split()))) or type(error).__name__


def _reason(error: BaseException, settings: RedisSettings) -> str:
    """Return a reason for the operator why Redis cannot be used, with the remedy."""
    from redis import exceptions

    text = _line(error)
    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        return f"it does not answer within {_WHOLE_S:g} seconds"
    wrong_arguments = exceptions.AuthenticationWrongNumberOfArgsError
    if isinstance(error, exceptions.AuthenticationError | wrong_arguments):
        remedy = "check the user of --redis and MCP_SKILLS_REDIS_PASSWORD"
        return f"it rejects the login ({text}); {remedy}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted; name its authority by --redis-ca"
    if "DB index is out of range" in text:
        return f"it has no database {settings.database}; give another one in --redis"
    if isinstance(error, exceptions.BusyLoadingError):
        return "it is loading its data"
    if isinstance(error, exceptions.ResponseError):
        return f"it refuses the command ({text})"
    if isinstance(error, exceptions.ConnectionError | OSError):
        return f"there is no connection ({text})"
    if not isinstance(error, exceptions.RedisError):
        text = type(error).__name__
    return f"the server there is not Redis ({text})"
