"""What servers of P4Runtime and BF Runtime share: the calls have the same names, and messages are named for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc


class SwitchServer(ABC):
    """On a port of loopback, from the constructor to `close`."""

    credentials: grpc.ServerCredentials | None = None
    """For TLS; of the class, to be set before one is made."""
    port = 0
    """TCP port, likewise; 0: a free one."""

    def __init__(self, service: str, messages: Any, **unary: Callable[[Any, Any], Any]) -> None:
        """``messages``: the module of the protocol's messages. ``unary``: calls by name."""

        def handler(kind: Any, name: str, call: Any) -> Any:
            request, response = (getattr(messages, f"{name}{what}") for what in ("Request", "Response"))
            return kind(call, request.FromString, response.SerializeToString)

        handlers = {name: handler(grpc.unary_unary_rpc_method_handler, name, call) for name, call in unary.items()}
        handlers["Read"] = handler(grpc.unary_stream_rpc_method_handler, "Read", self._read)
        handlers["StreamChannel"] = handler(grpc.stream_stream_rpc_method_handler, "StreamMessage", self._stream)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if self.credentials is None:
            port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        else:
            port = self._server.add_secure_port(f"127.0.0.1:{self.port}", self.credentials)
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    @abstractmethod
    def _read(self, request: Any, context: Any) -> Iterator[Any]: ...

    @abstractmethod
    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]: ...

    def close(self) -> None:
        self._server.stop(None).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
