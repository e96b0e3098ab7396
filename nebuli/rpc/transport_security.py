"""gRPC with the certificates and the secret of a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nebuli.rpc.proof import Checking, Proofs, ProvingOne, ProvingSeveral

if TYPE_CHECKING:
    import netchannel
    from nebuli.rpc.trust import Trust

__all__ = ["bind", "dial", "interceptors"]


def dial(worker: str, address: str, trust: Trust, *more: tuple[str, Any]) -> grpc.aio.Channel:
    """A channel to the worker of the node ``worker``, whose certificate is for that node's host; ``more`` options.

    Raises CertificateError for files that cannot be used.
    """
    # gRPC would take the proxy that $http_proxy names, which reaches neither this machine nor its network.
    # A worker that was away is found soon after it is back, however long it was.
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 1000), *more]
    proving = (
        [] if trust.secret is None else [each(trust.secret, worker) for each in (ProvingOne, ProvingSeveral)]
    )
    if trust.tls is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=proving)
    from netchannel.tls import Credentials  # as in `nebuli.rpc.trust`

    Credentials(trust.tls, "sender")  # has a message about the fault of the files; gRPC has not
    key, chain, roots = _files(trust.tls)
    credentials = grpc.ssl_channel_credentials(roots, key, chain)
    host = trust.tls.server_name or worker.rpartition(":")[0].strip("[]")
    options.append(("grpc.ssl_target_name_override", host))
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=proving)


def interceptors(worker: str, trust: Trust, but: str | None = None) -> list[Checking]:
    """Return the checks of each call at a worker's server, except of methods that begin like this."""
    return [] if trust.secret is None else [Checking(Proofs(trust.secret, worker), but)]


def bind(server: grpc.aio.Server, address: str, trust: Trust) -> int:
    """Have the server listen; the port. Raises RuntimeError, or CertificateError for files that cannot be used.

    Files that change are read again for the next connection; while they do not fit together, the old ones are used.
    """
    if trust.tls is None:
        return int(server.add_insecure_port(address))
    current = _Current(trust.tls)
    credentials = grpc.dynamic_ssl_server_credentials(
        current.configuration, current.if_changed, require_client_authentication=True
    )
    return int(server.add_secure_port(address, credentials))


class _Current:
    """The current contents of a worker's files."""

    def __init__(self, tls: netchannel.Tls) -> None:
        from netchannel.tls import Credentials

        self._tls = tls
        self._checked = Credentials(tls, "receiver")
        self._context = self._checked.context()
        self.configuration = _configuration(tls)

    def if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The files, if they have changed and can be used; gRPC asks before each handshake, on any thread."""
        context = self._checked.context()
        if context is self._context:
            return None
        self.configuration = _configuration(self._tls)
        self._context = context  # last: what could not be read now is read before the next handshake
        return self.configuration


def _configuration(tls: netchannel.Tls) -> grpc.ServerCertificateConfiguration:
    key, chain, roots = _files(tls)
    return grpc.ssl_server_certificate_configuration([(key, chain)], roots)


def _files(tls: netchannel.Tls) -> tuple[bytes, bytes, bytes]:
    return Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes(), Path(tls.authority).read_bytes()
